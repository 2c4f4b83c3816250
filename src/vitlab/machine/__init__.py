"""Limits of this process on the machine: cores, memory, open files."""
