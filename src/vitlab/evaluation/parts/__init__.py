"""Results of any number of images as a folder of parts, which any number of processes fill."""
