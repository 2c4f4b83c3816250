"""The report of a run that learned without labels."""
