"""Models: read vit.py first, the Vision Transformer on one page. Nothing here knows of training."""
