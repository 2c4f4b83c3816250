"""Images that are already in memory, and what makes them a batch."""
