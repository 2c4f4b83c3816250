"""One step: from a batch to new weights."""
