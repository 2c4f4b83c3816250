"""From batches to weights: recipes, the loop, checkpoints, run folders."""
