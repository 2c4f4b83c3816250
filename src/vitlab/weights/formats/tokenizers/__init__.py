"""Released image tokenizers: DALL-E's, and those of DALLE-pytorch."""
