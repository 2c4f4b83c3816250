"""Objectives: the loss of a batch, supervised or self-supervised; read classify.py first."""

from vitlab.objectives.masks import block_mask

__all__ = ["block_mask"]
