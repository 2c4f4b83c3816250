"""The service as a process: where it listens, what ends it, and which folder it watches."""
