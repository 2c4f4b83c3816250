"""A run that several tests of training compare theirs with."""

import pytest

import vitlab
from training.kept import PLAIN


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A run of `PLAIN` on digits, twelve steps, that nothing happened to."""
    return vitlab.train(vitlab.recipe("digits", **PLAIN), tmp_path_factory.mktemp("whole") / "run")
