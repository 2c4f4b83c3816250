"""What released files have in them: `names.py` first, then `dialects.py`, a table a family."""
