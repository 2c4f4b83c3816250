"""Self-distillation with no labels (DINO)."""
