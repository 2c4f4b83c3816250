"""How a model knows where a token is: one class a file."""
