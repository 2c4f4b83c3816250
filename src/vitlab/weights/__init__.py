"""Where a model's weights come from and go to."""
