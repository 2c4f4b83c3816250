"""From bytes to pixels."""
