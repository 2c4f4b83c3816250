"""Drawings of a page: plots as inline SVG, pictures as data URIs."""
