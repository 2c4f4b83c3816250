"""Position schemes, a class each: read positions.py first, for what a scheme is."""
