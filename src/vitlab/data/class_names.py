"""Names of classes as they are compared: one spelling of each, and those that look alike."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200e\u200f\u2060\ufeff"))


def spell_name(name: str) -> str:
    """Return the name of a class as it is compared: composed, without spaces around it.

    macOS writes é as two characters; invisible ones come from web pages. They look the same.
    """
    composed = name if name.isascii() else unicodedata.normalize("NFC", name.translate(_INVISIBLE))
    return composed.strip()


def look_alike_notes(names: Iterable[str], title: str) -> list[str]:
    """Return a line about classes whose names differ in case, zeros, or kinds of characters."""
    alike = dict[str, list[str]]()
    for name in names:
        key = unicodedata.normalize("NFKC", name).casefold()
        key = "".join(sign for sign in key if unicodedata.category(sign) != "Cf")
        key = re.sub(r"[\s_-]+", " ", key)
        alike.setdefault(re.sub(r"(?<![\w.])0+(?=\d)", "", key), []).append(name)
    pairs = [sorted(own) for own in alike.values() if len(own) > 1]
    if not pairs:
        return []
    shown = "; ".join(" and ".join(map(repr, own)) for own in pairs[:3])
    return [f"{title} has classes whose names are nearly the same: {shown}"]


def merge_names(names: Iterable[str], title: str) -> tuple[dict[str, str], list[str]]:
    """Return the spelled name of each class, and lines about those of two spellings.

    Args:
        names: as they are written, of folders for example
        title: what to call the data
    """
    spelled = {name: spell_name(name) or name for name in names}
    twice = [name for name, count in Counter(spelled.values()).items() if count > 1]
    notes = [
        f"{title}: {name!r} is written in {Counter(spelled.values())[name]} ways that look the "
        "same, and is one class"
        for name in twice
    ]
    return spelled, [*notes, *look_alike_notes(dict.fromkeys(spelled.values()), title)]
