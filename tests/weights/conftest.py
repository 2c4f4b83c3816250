"""A hub on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oracles.hub import Hub, running_hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running_hub(tmp_path / "cache") as hub:
        yield hub
