"""A plugin for runs that are alike everywhere: shuffled orders, seeds, waits, a clock that stands.

`pytest --shuffle SEED` runs the files, and the tests in each, in a random order.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import pytest
import torch

from vitlab.progress import WATCH

T = TypeVar("T")
PATIENCE = 600.0  # seconds after which something hangs; no test that passes waits for them


def wait_until(condition: Callable[[], T]) -> T:
    """Wait until something is there, or so; return it."""
    end = time.monotonic() + PATIENCE
    while not (there := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE:g} s"
        time.sleep(0.005)
    return there


def pytest_configure() -> None:
    """Let Hypothesis draw the same examples in every run, and wait for them."""
    with suppress(ImportError):  # the tests on a GPU have none
        from hypothesis import HealthCheck, settings

        how = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
        settings.register_profile("steady", derandomize=True, **how)
        settings.load_profile("steady")


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws from PyTorch's own generator depends on no test before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_slow() -> Iterator[None]:
    """What takes long is named on stderr: by this clock nothing does, on the slowest machine."""
    before = WATCH.clock
    WATCH.clock = lambda: 0.0
    yield
    WATCH.clock = before
