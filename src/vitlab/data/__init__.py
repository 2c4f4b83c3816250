"""Data: sources, splits, decoding, order, loading, augmentation; read open.py first."""
