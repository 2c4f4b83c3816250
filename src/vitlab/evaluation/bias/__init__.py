"""What a classifier relies on: its accuracy on images that are changed in one respect."""
