"""Files with timm's names, and timm's config.json: `timm_format.py` first."""
