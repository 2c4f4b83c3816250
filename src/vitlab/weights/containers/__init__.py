"""Files of weights as they are found: each kind of container in a file of its own."""
