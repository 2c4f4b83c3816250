"""Stems, images to patch tokens, a class each: read stem.py first."""
