"""Position schemes, one class a file: read positions.py first, for what a scheme is."""
