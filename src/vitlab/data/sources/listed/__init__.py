"""Lists of images: CSV and JSON Lines, with the columns that people give them."""
