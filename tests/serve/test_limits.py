"""The service's bounds are options like all others."""

import pytest

from vitlab.errors import OptionError
from vitlab.serve.limits import Limits


def test_every_bound_is_checked() -> None:
    assert Limits().max_pixels == 25
    with pytest.raises(OptionError, match="max_pixels must be above 0 and at most 50, not 60"):
        Limits(max_pixels=60)
    with pytest.raises(OptionError, match="queue must be at least 1"):
        Limits(queue=0)
