"""Reports are whole here: they are what is tested."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vitlab.report import charts, curves


@pytest.fixture(autouse=True, scope="session")
def _drawn_once() -> Iterator[None]:
    """A drawing of a page is made once for the same values: it takes half a second."""
    known = dict[bytes, Any]()

    def once(draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*values: Any, **more: Any) -> Any:
            key = pickle.dumps((draw.__name__, values, more))
            known[key] = known[key] if key in known else draw(*values, **more)
            return known[key]

        return drawn

    with pytest.MonkeyPatch.context() as patch:
        for room, name in ((curves, "lines"), (charts, "matrix"), (charts, "reliability")):
            patch.setattr(room, name, once(getattr(room, name)))
        yield
