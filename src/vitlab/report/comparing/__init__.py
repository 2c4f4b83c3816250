"""Several runs as one page: figures, tests, curves and recipes."""
