"""Reports are whole here: pages of the documentation run as they are printed."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _undrawn() -> None:
    """Stub nothing."""
