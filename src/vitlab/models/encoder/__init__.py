"""The encoder: read block.py first, then attention.py. What few models need stands beside them."""
