"""The test sets made for models of ImageNet's 1,000 classes, each with its own rules."""
