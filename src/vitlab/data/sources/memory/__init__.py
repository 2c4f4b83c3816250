"""Data in memory as sources: one file per kind of object."""
