"""Training of a discrete VAE, whose codes BEiT predicts."""
