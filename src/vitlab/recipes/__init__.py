"""Recipes: what they are, and the named ones with their papers."""
