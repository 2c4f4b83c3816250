"""What of an output is of the machine, the day or the place: one table of rules, and why.

No file is left out for it: a rule replaces a value, and its name and its place remain.
"""

import re
from collections.abc import Iterable

CLOCKS = r"\w*seconds|elapsed|timing|images_per_second|peak_memory|latency|time|added|difference"
FIGURE = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
PACKAGES = "vitlab|torch|numpy|pillow|python"
RULES: tuple[tuple[str, str, str], ...] = (  # why, what, by what
    ("a clock, or noise of the last bits", rf'("(?:{CLOCKS})": ){FIGURE}', r"\1CLOCK"),
    ("a clock", r"(?<![\d:.])\d+:\d\d(?![\d:])(?! UTC)", "CLOCK"),
    ("an image, whose bytes are a library's", r'"iVBOR[^"]*"', '"PNG"'),
    ("a random name", r'("(?:id|request)": )"[^"]*"', r"\1ID"),
    ("a random name", r"(/api/\w+/\d/)\w{8,}", r"\1ID"),
    ("a day", r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:\+00:00|Z| UTC)?", "DAY"),
    ("a day", r"\d{1,2} [A-Z][a-z]+ \d{4}, \d\d:\d\d UTC", "DAY"),
    ("a duration", rf"\b{FIGURE} (?:ms|s|min|h|seconds?|minutes?|hours?)\b", "DURATION"),
    ("a speed", r"((?:images/s|Images per second)[\n |]+)[\d,.]+", r"\1SPEED"),
    ("a speed", r"(DURATION \| )[\d,.]+( \| [\d,.]+ [kMG]B)", r"\1SPEED\2"),
    ("memory", r"((?:peak memory|Memory, at most|SPEED)[\n |]+)[\d,.]+ [kMG]B", r"\1MEMORY"),
    ("noise of the last bits", rf"within {FIGURE} of the model", "within NOISE of the model"),
    ("size of what another package writes", rf"(\.onnx|\.pt2), {FIGURE} [kM]B", r"\1, SIZE"),
    ("size of what another package writes", rf"(\bsize +){FIGURE} [kM]B", r"\1SIZE"),
    ("size of a table, whose last digits differ", r'("bytes": )\d+', r"\1SIZE"),
    ("threads of the machine", r"cpu, \d+ threads?", "cpu, THREADS"),
    ("a version, which only a checkout has", r"^git = .*\n", ""),
    ("a version", rf"^({PACKAGES}|processor) = .*$", r"\1 = VERSION"),
    ("a version", rf'("(?:{PACKAGES}|processor|git|version)": )"[^"]*"', r"\1VERSION"),
    ("a version", rf"\b({PACKAGES}) \d[\w.+]*", r"\1 VERSION"),
    ("a version", r"\bprocessor .*(?:, revision \w+)?$", "processor VERSION"),
    ("a digest of weights, or of what has a version in it; not that of the data",
     r'(?<!^fingerprint = ")\b[0-9a-f]{64}', "DIGEST"),
    ("the same, its beginning",
     r"(?<!data\n\| )\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{12}\b", "DIGEST"),
    ("a column is as wide as a clock", r"(?<=\S) {2,}(?=\S)", "  "),
    ("a column is as wide as a clock", r" +$", ""),
    ("a column is as wide as a clock", r"─{3,}", "───"),
)  # fmt: skip
COMPILED = [(re.compile(pattern, re.MULTILINE), own) for _, pattern, own in RULES]
PROGRESS = re.compile(r"^.*(?: …| … \S+|:\d\d (?:so far|left))\n", re.MULTILINE)


def normal(text: str, places: Iterable[tuple[str, str]] = ()) -> str:
    """Return a text in which the rules hold.

    Args:
        text: of an output or a file
        places: folders of this machine, and what to call each
    """
    for place, name in places:
        text = text.replace(place, name)
    for pattern, own in COMPILED:
        text = pattern.sub(own, text)
    return text


def without_progress(err: str) -> str:
    """Return what was said, without the lines that a slow machine shows of a work under way."""
    return PROGRESS.sub("", err)
