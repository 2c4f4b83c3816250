"""From bytes to batches: sources, splits, decoding, order, loading, augmentation."""
