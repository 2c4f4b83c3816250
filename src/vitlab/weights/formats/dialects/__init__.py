"""Other people's names for the tensors of a Vision Transformer, and what goes with them."""
