"""Released image tokenizers: DALL-E's."""
