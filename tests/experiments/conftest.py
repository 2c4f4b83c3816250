"""What several tests of experiments learn from."""

from pathlib import Path

import pytest

from conftest import photo_folder


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of twelve and nine pictures, not split."""
    return photo_folder(tmp_path_factory.mktemp("few") / "photos", {"blue": 12, "red": 9}, 16, 16)
