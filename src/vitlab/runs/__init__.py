"""Runs on the disk: the only code that knows their files and their formats."""
