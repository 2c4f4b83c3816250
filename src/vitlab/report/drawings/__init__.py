"""What a page draws: plots as inline SVG, pictures as data URIs."""
