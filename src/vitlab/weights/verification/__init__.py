"""Published weights, compared with the libraries they were published with."""
