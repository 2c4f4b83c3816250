"""Several runs as one page: figures, tests, curves, recipes, and where they disagree."""
