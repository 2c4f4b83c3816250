"""Several processes as one run: read `world.py` first (what they exchange), then `launch.py`."""
