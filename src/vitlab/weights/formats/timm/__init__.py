"""timm's format."""
