"""Sources of images and labels: read source.py and request.py first."""
