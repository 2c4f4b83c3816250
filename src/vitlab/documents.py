"""JSON and TOML that files hold: an object of limited size and nesting, or one error.

Such files may come from anybody, or be damaged. `json.loads` and `tomllib` alone take any length,
raise RecursionError for what is nested deeply, and give whatever is there: a number, a list, null.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitlab.errors import UserError
from vitlab.files import read_bytes

LARGEST = 64 * 2**20  # bytes of a file
DEEPEST = 64  # objects in each other
QUOTED = re.compile(  # a text of TOML, also one without an end
    r'"""(?s:.*?)(?:"""|\Z)' + r"|'''(?s:.*?)(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*+"?' + r"|'[^'\n]*+'?"
)
DOTTED = re.compile(
    rf"(?<![\w-])[\w-]++(\s*+\.\s*+[\w-]++){{{DEEPEST}}}"
)  # a key of so many objects
Fields = dict[str, Any]


def read_json(file: Path, error: type[UserError], limit: int = LARGEST) -> Fields:
    """Return the JSON object in a file.

    Args:
        file: a regular one
        error: what is raised; its message begins with the file
        limit: bytes of the file

    Raises:
        UserError: of the type `error`: it cannot be read, is too large, no JSON, nested too deeply,
            or no object.
    """
    return parse_json(_content(file, error, limit), str(file), error, limit)


def parse_json(
    text: str | bytes, name: str, error: type[UserError], limit: int = LARGEST
) -> Fields:
    """Return the JSON object in a text.

    Args:
        text: in UTF-8, if it is bytes
        name: with which the message of an error begins
        error: what is raised
        limit: bytes or characters of the text

    Raises:
        UserError: of the type `error`, as `read_json`.
    """
    if len(text) > limit:
        raise error(f"{name} is damaged: {len(text):,} bytes exceed the limit of {limit:,}")
    try:
        found = json.loads(text)
    except RecursionError:
        raise error(f"{name} is damaged: it is nested too deeply") from None
    except ValueError as reason:
        raise error(f"{name} is damaged: {_why(reason)}") from reason
    return _check_shape(found, name, error)


def read_toml(file: Path, error: type[UserError], limit: int = LARGEST) -> Fields:
    """Return the tables in a TOML file, as `read_json`."""
    try:
        text = _content(file, error, limit).decode("utf-8")
        if DOTTED.search(QUOTED.sub("x", text)):  # tomllib takes the square of its length
            raise RecursionError
        found = tomllib.loads(text)
    except RecursionError:
        raise error(f"{file} is damaged: it is nested too deeply") from None
    except ValueError as reason:
        raise error(f"{file} is damaged: {_why(reason)}") from reason
    return _check_shape(found, str(file), error)


def _content(file: Path, error: type[UserError], limit: int) -> bytes:
    try:
        return read_bytes(file, limit)
    except OSError as reason:
        raise error(f"{file} cannot be read: {str(reason.strerror).lower()}") from reason


def _why(reason: ValueError) -> str:
    """Return what a parser says, without Python's advice about very long numbers."""
    text = str(reason)
    return "a number has too many digits" if "integer string conversion" in text else text


def _check_shape(found: Any, name: str, error: type[UserError]) -> Fields:
    """Return an object whose parts are not nested too deeply."""
    level: list[Any] = [found] if isinstance(found, dict | list) else []
    for _ in range(DEEPEST):  # Python 3.14 reads what is nested 10,000 times
        inside = (_parts(each) for each in level)
        level = [part for parts in inside for part in parts if isinstance(part, dict | list)]
    if level:
        raise error(f"{name} is damaged: it is nested too deeply")
    if not isinstance(found, dict):
        raise error(f"{name} is damaged: it holds no object, but {_kind(found)}")
    return found


def _parts(value: Any) -> Iterable[Any]:
    """Return what is in a list or an object."""
    return value.values() if isinstance(value, dict) else value


def _kind(value: Any) -> str:
    """Return what JSON calls a value."""
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
