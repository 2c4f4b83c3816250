"""Image encoders of other repositories, a file each, and families that our model is not."""
