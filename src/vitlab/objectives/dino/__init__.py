"""Self-distillation with no labels: DINO, with iBOT's and DINOv2's losses beside it."""
