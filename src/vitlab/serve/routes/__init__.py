"""What the service answers at each address."""
