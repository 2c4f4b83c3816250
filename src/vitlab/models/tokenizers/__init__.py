"""Image tokenizers: discrete VAEs, whose codes BEiT predicts."""
