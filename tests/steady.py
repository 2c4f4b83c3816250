"""A plugin for runs that are alike on every machine: shuffled orders, waits, a clock that stands.

`pytest --shuffle SEED` runs the files, and the tests in each, in a random order.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from vitlab.progress import WATCH

T = TypeVar("T")
PATIENCE = 600.0  # seconds after which something hangs; no test that passes waits for them

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def wait_until(condition: Callable[[], T]) -> T:
    """Wait until something is there, or so; return it."""
    end = time.monotonic() + PATIENCE
    while not (there := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s"
        time.sleep(0.005)
    return there


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--shuffle", metavar="SEED", help="run files and tests in a random order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, and the tests in each, if that is asked for."""
    if (seed := config.getoption("--shuffle")) is None:
        return
    chance, files = random.Random(seed), defaultdict[object, list[pytest.Item]](list)
    for item in items:
        files[item.path].append(item)
    for tests in files.values():
        chance.shuffle(tests)
    items[:] = [item for path in chance.sample([*files], len(files)) for item in files[path]]


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_slow() -> Iterator[None]:
    """What takes long is named on stderr: by this clock nothing does, on the slowest machine."""
    before = WATCH.clock
    WATCH.clock = lambda: 0.0
    yield
    WATCH.clock = before
