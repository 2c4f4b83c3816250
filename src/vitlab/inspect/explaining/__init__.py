"""What in an image speaks for a class."""
