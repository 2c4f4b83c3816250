"""The explorer: a page on this machine that shows what a model does with an image, live."""
