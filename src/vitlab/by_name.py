"""Objects by name: the text "module:object" of a table, and the one function that resolves it.

What has a name that a user types (a command, a stem, a task, a format of weights) stands in one
plain dictionary from that name to such a text, so that a file imports only what it uses. Only the
files of these dictionaries call `load_object`; a test knows them (`tests/test_by_name.py`).
"""

from importlib import import_module
from typing import Any


def load_object(text: str) -> Any:
    """Import what a table names.

    Args:
        text: a module and an object of it: `vitlab.weights.formats.google:reads`
    """
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)
