"""From the bytes of a request to pixels, in processes that may be killed."""
