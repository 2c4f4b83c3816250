"""VTAB-1k: fine-tune on 19 small data sets, one after the other."""
