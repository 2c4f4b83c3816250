"""Paths in cells of tables: what is one, and how else it may be spelled."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from vitlab.data.cells import plain_value

PATH_COLUMNS = (
    "path", "file", "file_name", "filename", "image", "image_path", "img_path", "filepath",
    "file_path", "image_name", "image_id", "image_file", "img", "id", "name",
)  # fmt: skip


MOST_FOLDERS = 6  # of a path of another machine
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def path_in(cell: Any) -> str:
    """Return the path in a cell; empty if there is none."""
    value = plain_value(cell)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if text.strip() and "\0" not in text else ""


def path_spellings(path: str, root: str = "") -> Iterator[tuple[str, str]]:
    r"""Yield the path as it is written, then other ways to read it, each with what is done.

    Args:
        path: as a list of Windows, macOS or a web page writes it: `cat\1.jpg`, `file:///a%20b.jpg`
        root: name of the folder that paths are relative to, with which they may begin
    """
    seen = {path}
    yield path, ""
    forms = [(path, "")]
    if (text := path.strip().strip("\"'")) != path:
        forms.append((text, "without the spaces or quotes around them"))
    if text.lower().startswith("file:"):
        forms.append((unquote(re.sub(r"^file:(//(localhost)?)?", "", text, flags=re.I)), "as URLs"))
    if "\\" in text:
        forms.append((text.replace("\\", "/"), "with / for \\"))
    if "%" in text and unquote(text) != text:
        forms.append((unquote(text), "with % decoded"))
    for form, how in [*forms]:
        if form.startswith("/"):
            forms.append((form.lstrip("/"), "relative to the folder"))
        bare = form.removeprefix("./").lstrip("/")
        if root and bare.startswith(f"{root}/"):
            forms.append((bare[len(root) + 1 :], how or f"without {root}/"))
    for form, how in [*forms]:
        for kind in ("NFC", "NFD"):
            if not form.isascii():
                forms.append((unicodedata.normalize(kind, form), how or f"in Unicode's {kind}"))
    for form, how in forms + _tails([form for form, _ in forms]):
        if form and form not in seen:
            seen.add(form)
            yield form, how


def _tails(forms: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ends of absolute paths, the longest first, each with a folder of its own.

    So a list of another machine, /home/her/photos/cat/1.jpg, has cat/1.jpg.
    """
    found = list[tuple[str, str]]()
    for form in forms:
        if _ABSOLUTE.match(form):
            parts = [part for part in form.split("/") if part]
            ends = range(max(1, len(parts) - MOST_FOLDERS - 1), len(parts) - 1)
            found += [("/".join(parts[end:]), "by the last of their folders") for end in ends]
    return found
