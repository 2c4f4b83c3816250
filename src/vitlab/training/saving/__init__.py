"""Checkpoints: what is in them, their format, and who writes them when."""
