"""What is computed inside an exported graph from the size of its images."""
