"""Released formats, a file or folder each: what their files look like, and how they are named."""
