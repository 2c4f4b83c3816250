"""Files and folders of tensors, whatever model is in them: `open.py` first."""
