"""Order, batches, worker processes."""
