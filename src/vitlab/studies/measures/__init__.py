"""What a study measures of a trained model, and of several together."""
