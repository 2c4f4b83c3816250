"""Existence of what options name, such as data or weights, checked before a command runs."""

from collections.abc import Callable
from typing import Any

from vitlab.data.exists import check_data
from vitlab.options import Check
from vitlab.weights.hub import check_weights


def check_named(check: Check, value: Any) -> None:
    """Refuse the value of an option that cannot be there, as the option declares.

    Raises:
        UserError: the message says what is missing.
    """
    checks: dict[str, Callable[[Any], object]] = {"data": check_data, "weights": check_weights}
    (checks[check] if isinstance(check, str) else check)(value)
