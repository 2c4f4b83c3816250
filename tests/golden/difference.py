"""Two texts compared: words exactly, figures within a tolerance.

Whole numbers are equal, and so are figures of at most `SHORT` digits: settings and counts. Longer
ones differ by at most `RELATIVE` of their size, or `ABSOLUTE`: two processors (AVX-512 and AVX2)
differed by at most 7e-5 of it. In text for readers figures are rounded, and a last bit may move the
last digit: one in `ROUNDED` of a line's may be off by one there.
"""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

RELATIVE = 2e-4
ABSOLUTE = 2e-6
ROUNDED = 50
SHORT = 4  # digits of a figure that was rounded
SHOWN = 12  # differences of a line
WIDTH = 160  # characters of each
FIGURE = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")


def differences(old: str, new: str) -> list[str]:
    """Return what differs: the section, the path or the line, old -> new."""
    before, after = old.splitlines(), new.splitlines()
    found, loose, figures = list[str](), list[str](), 0
    titles = _titles(before)
    for first, second in _pairs(before, after):
        one = before[first] if first is not None else None
        two = after[second] if second is not None else None
        if one is None or two is None:
            lines, number = (before, first) if two is None else (after, second)
            assert number is not None
            found.append(f"{place(lines, number)}: {_cut(one)} -> {_cut(two)}")
            continue
        verdict, counted = _compare(one, two, _is_told(before, first, titles))
        figures += counted
        if verdict:
            assert second is not None
            text = f"{place(after, second)}: {_cut(one)} -> {_cut(two)}"
            (loose if verdict == "rounded" else found).append(text)
    return found + (loose if len(loose) > max(1, figures // ROUNDED) else [])


def _titles(lines: list[str]) -> list[str]:
    """Return the section of each line."""
    found, title = list[str](), ""
    for line in lines:
        title = line.removeprefix("== ") if line.startswith("== ") else title
        found.append(title)
    return found


def _is_told(lines: list[str], number: int | None, titles: list[str]) -> bool:
    """Return whether a line is text for a reader, in which figures are rounded."""
    if number is None or '": ' in lines[number]:
        return False
    return titles[number] in ("stdout", "stderr") or titles[number].endswith((".html", ".md"))


def _cut(line: str | None) -> str:
    if line is None:
        return "nothing"
    text = line.strip()
    return text if len(text) <= WIDTH else f"{text[:WIDTH]} …"


def _pairs(before: list[str], after: list[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield which lines belong together, whatever their figures; None where one has no other."""
    old, new = ([FIGURE.sub("#", line) for line in lines] for lines in (before, after))
    if len(old) == len(new):
        yield from zip(range(len(old)), range(len(new)), strict=True)
        return
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        both = min(j - i, m - k) if tag != "equal" else j - i
        yield from ((i + n, k + n) for n in range(both))
        yield from ((n, None) for n in range(i + both, j))
        yield from ((None, n) for n in range(k + both, m))


def _compare(one: str, two: str, told: bool) -> tuple[str, int]:
    """Return how two lines differ (empty: not; rounded; other), and how many figures they round.

    Args:
        one: a line
        two: the other
        told: whether it is text for a reader, and no value of a file
    """
    if one == two:
        return "", _rounded(one)
    if FIGURE.sub("#", one) != FIGURE.sub("#", two):
        return "other", 0
    pairs = list(zip(FIGURE.findall(one), FIGURE.findall(two), strict=True))
    verdicts = {_figures(a, b, told) for a, b in pairs}
    worst = "other" if "other" in verdicts else "rounded" if "rounded" in verdicts else ""
    return worst, _rounded(one)


def _rounded(line: str) -> int:
    """Return how many figures of a line were rounded for the reader."""
    return sum("." in each and _digits(each) <= SHORT for each in FIGURE.findall(line))


def _figures(one: str, two: str, told: bool) -> str:
    if one == two:
        return ""
    if one.lstrip("-").isdigit() and two.lstrip("-").isdigit():
        return "other"
    distance = abs(float(one) - float(two))
    if max(_digits(one), _digits(two)) <= SHORT:
        unit = _unit(one)
        return "rounded" if told and unit == _unit(two) and distance <= 1.01 * unit else "other"
    size = max(abs(float(one)), abs(float(two)))
    return "" if distance <= max(RELATIVE * size, ABSOLUTE) else "other"


def _digits(figure: str) -> int:
    return len(figure.partition("e")[0].replace(".", "").lstrip("-0"))


def _unit(figure: str) -> float:
    """Return what the last digit of a figure counts."""
    mantissa, _, exponent = figure.partition("e")
    return float(10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def place(lines: list[str], number: int) -> str:
    """Return the section of a line, with the keys around it in a JSON, or its number there."""
    start = max((n for n in range(number + 1) if lines[n].startswith("== ")), default=0)
    keys, depth = list[str](), _indent(lines[number])
    for n in range(number, start, -1):
        key = re.match(r'\s*"([^"]+)": ', lines[n])
        if key and (n == number or _indent(lines[n]) < depth):
            keys.append(key[1])
        depth = min(depth, _indent(lines[n])) if lines[n].strip() else depth
    where = ".".join(reversed(keys)) or f"line {number - start}"
    return f"{lines[start].removeprefix('== ')}: {where}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
