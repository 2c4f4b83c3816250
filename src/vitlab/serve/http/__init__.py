"""What happens between a socket and the engine: requests in, answers, logs and figures out."""
