"""Studies: a grid of recipes, run within a budget, and its table beside the paper's figures."""
