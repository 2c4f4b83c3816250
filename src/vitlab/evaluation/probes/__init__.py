"""What a model's features are good for: few-shot, nearest neighbors, logistic regression."""
