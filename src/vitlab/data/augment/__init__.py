"""Augmentation of whole batches, on the training device."""
