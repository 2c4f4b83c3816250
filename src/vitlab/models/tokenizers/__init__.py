"""Image tokenizers, discrete VAEs whose codes BEiT predicts: read tokenizer.py first."""
