"""How images become patch tokens, one class a file: read stem.py first, for what a stem is."""
