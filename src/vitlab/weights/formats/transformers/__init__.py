"""Folders of transformers: `transformers_format.py` first, then `families.py`, a family each."""
