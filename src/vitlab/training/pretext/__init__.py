"""The parts of a run that learns without labels: its held-out loss, and its end."""
