"""What a study shows: its table, its picture, its page."""
