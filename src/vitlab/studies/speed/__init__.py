"""Everything about a model's speed: each image size, inference and training, and the plots."""
