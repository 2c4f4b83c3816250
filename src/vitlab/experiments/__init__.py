"""Several training runs with one purpose: sweeps, folds, seeds, VTAB. Read `cells.py` first."""
