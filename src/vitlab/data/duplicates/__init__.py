"""Near-duplicates: the same picture resized, re-compressed, cropped a little, or mirrored."""
