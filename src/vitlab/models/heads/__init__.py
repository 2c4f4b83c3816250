"""Heads of other tasks than classification: boxes, masks and numbers."""
