"""Studies of the ViT paper."""
