"""From trained weights to new tasks."""
