"""Released formats, a file each: what their files look like, and a table of names."""
