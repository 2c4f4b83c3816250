"""The ResNets of the ViT paper, BiT and axial: read resnet.py first."""
