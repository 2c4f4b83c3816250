"""The explorer: a local page that looks inside models, live."""
