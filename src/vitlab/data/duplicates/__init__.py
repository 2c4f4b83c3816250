"""Near-duplicate images: the same picture again, resized, re-compressed, cropped a little, or flipped."""
