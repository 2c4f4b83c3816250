"""Configurations: the choices of every model, of a ViT, of a ResNet."""
