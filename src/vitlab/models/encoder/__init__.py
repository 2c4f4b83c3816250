"""What a block of the encoder is: attention and MLPs, and how the tokens that they see lie."""
