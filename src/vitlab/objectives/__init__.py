"""What is learned from a batch."""

from vitlab.objectives.masks import block_mask

__all__ = ["block_mask"]
