"""Pages that a browser runs: the service's own, and that of an exported model."""
