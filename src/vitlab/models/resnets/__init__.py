"""The ResNets of the ViT paper: BiT and axial."""
