"""What a configuration is: the choices of every model, of a ViT, of a ResNet."""
