"""What a model is: its configuration, its name, its parts. Nothing here knows of training."""
