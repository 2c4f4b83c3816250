"""Few digits for all of training, and a run that several tests compare theirs with."""

from collections.abc import Iterator

import pytest

import vitlab
from conftest import SHOWN, fewer_digits
from training.kept import PLAIN


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    with fewer_digits():
        yield


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A run of `PLAIN` on few digits, six steps, that nothing happened to."""
    with fewer_digits():
        return vitlab.train(
            vitlab.recipe("digits", **PLAIN),
            tmp_path_factory.mktemp("w") / "run",
            host=vitlab.Host(effort=SHOWN),
        )
