"""Matrix products of a training step, computed where they are fastest."""
