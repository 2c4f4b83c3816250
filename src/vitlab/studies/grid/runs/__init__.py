"""The runs of a study: what one costs, how long they may be, several at once."""
