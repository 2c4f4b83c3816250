"""Studies of Three things everyone should know about Vision Transformers."""
