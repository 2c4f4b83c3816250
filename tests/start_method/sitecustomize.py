"""Worker processes start as VITLAB_START_METHOD says, where this folder is on PYTHONPATH."""

import multiprocessing
import os

if method := os.environ.get("VITLAB_START_METHOD"):
    multiprocessing.set_start_method(method)
