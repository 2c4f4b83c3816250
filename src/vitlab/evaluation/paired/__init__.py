"""Several models on the same test images: what each answered, image by image, and tests of it."""
