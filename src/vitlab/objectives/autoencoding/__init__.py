"""Masked autoencoders: an encoder of visible patches, and a decoder of hidden ones."""
