"""On a machine with a GPU, the tests marked `gpu` need PyTorch and pytest alone.

Without one they are skipped, or rehearsed, to see that they run at all: VITLAB_GPU_TESTS=cpu puts
the CPU in its place, VITLAB_GPU_TESTS=stand-in the GPU that is not there.
"""

import os
from collections.abc import Iterator

import pytest
import torch

REHEARSED = os.environ.get("VITLAB_GPU_TESTS", "")
if torch.cuda.is_available() or REHEARSED:  # the others are for machines without one
    collect_ignore_glob = ["test_*_on_gpu.py", "test_stand_in.py", "test_compiled.py"]


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """The GPU, or what stands in for it."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
    elif REHEARSED == "stand-in":
        from on_gpu.a_gpu_there import a_gpu

        with a_gpu():
            yield torch.device("cuda")
    elif REHEARSED == "cpu":
        yield torch.device("cpu")
    else:
        pytest.skip("needs a GPU")
