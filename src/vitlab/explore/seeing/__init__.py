"""What a model makes of one image: a pass, and what follows from it."""
