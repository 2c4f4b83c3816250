"""Other people's implementations, made ready to be compared with."""
