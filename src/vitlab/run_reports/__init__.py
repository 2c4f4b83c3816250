"""Runs with their reports: what is above training and the pages. `vitlab.train` is `train.py`."""
