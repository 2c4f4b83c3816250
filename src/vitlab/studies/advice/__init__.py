"""What to choose: an architecture, an optimizer; what others advise, tested."""
