"""From pixels to answers: which models there are, what waits for them, and in which batches."""
