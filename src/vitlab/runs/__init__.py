"""Runs on the disk: read `run_folder.py` first, which knows their files and formats."""
