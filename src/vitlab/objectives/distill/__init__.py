"""Learning from a teacher's answers, beside the labels."""
