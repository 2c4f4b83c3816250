"""Tables of images: Parquet files, and data sets of the Hugging Face Hub."""
