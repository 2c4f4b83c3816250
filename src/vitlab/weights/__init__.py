"""Weights in and out: `load.py` first, then `formats/names.py`, how tensors find their names."""
