"""Stems, images to patch tokens, one class a file: read stem.py first."""
