"""Formats of released files: `names.py` first, then `dialects.py`, a table a family."""
