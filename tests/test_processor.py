"""What the C library does for a training step."""

import platform
import resource

import pytest
import torch

from vitlab import device


def faults_of_a_block() -> int:
    """Return how many pages of a block, freed just before, the system must fill anew."""
    size = 12_000_000  # 48 MB: above the largest block that glibc keeps by itself
    torch.ones(size).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept() -> None:
    device.keep_freed_memory()
    assert min(faults_of_a_block() for _ in range(5)) < 1000  # what comes between may take a part
