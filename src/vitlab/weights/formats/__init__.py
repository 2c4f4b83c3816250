"""Formats of released files: `records.py` has the notation, `names.py` the tables of names."""
