"""What is stored as a pickle, read without unpickling any of it."""
