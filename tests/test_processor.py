"""What the processor and the C library do for a training step."""

import platform
import resource
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Let the processor be asked anew, here and in what follows."""
    device.prefers_onednn.cache_clear()
    yield
    device.prefers_onednn.cache_clear()


@pytest.mark.parametrize(
    ("facts", "avx512", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", True, True),
        ("vendor_id\t: AuthenticAMD\n", False, False),
        ("vendor_id\t: GenuineIntel\n", True, False),
        (None, True, False),
    ],
)
def test_the_processor_decides(
    forgotten: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: str | None,
    avx512: bool,
    expected: bool,
) -> None:
    file = tmp_path / "cpuinfo"
    if facts is not None:
        file.write_text(facts)
    monkeypatch.setattr(device, "PROCESSOR", file)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    assert device.prefers_onednn() is (expected and torch.backends.mkldnn.is_available())
