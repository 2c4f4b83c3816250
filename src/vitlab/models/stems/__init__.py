"""How images become patch tokens: one class a file."""
