"""VTAB-1k: 19 data sets of 1,000 training images each."""
