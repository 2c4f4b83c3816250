"""Lines run in this process, and what each leaves: exit status, output, new and changed files."""

import hashlib
import io
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from difflib import ndiff
from pathlib import Path

from golden.calls import CALLS
from golden.lines import GROUPS, spelled
from golden.made_sets import write_sets
from golden.reading import pretty, text_of
from golden.rules import normal, without_progress

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1",
    "COLUMNS": "100", "TZ": "UTC", "MPLBACKEND": "agg",
}  # fmt: skip
SETTINGS_OF = {  # files of settings, and after what these stand
    "run.toml": "", "config.json": "", "report.html": "[All settings, table]",
}  # fmt: skip
MOST, HEAD = 1000, 40  # lines of a part; those that are kept of a longer one
EXPECTED = Path(__file__).with_name("expected")
MADE = ("photos", "tags", "tags.csv", "scenes", "boxes", "odd", "vtab")


def prepare() -> None:
    """Make the environment of the lines, before anything is imported: of a process of their own."""
    os.environ.update(SETTINGS)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONWARNINGS", None)


def _untold(name: str, text: str, seconds: float) -> None:
    """Do nothing."""


def record(group: str, done: Callable[[str, str, float], None] = _untold) -> dict[str, str]:
    """Return the text of each line of a group, in a folder that goes.

    Args:
        group: its name
        done: gets each line's name, its text and the CPU seconds that it took
    """
    texts = dict[str, str]()
    with _folder() as folder:
        write_sets(folder)
        places = _places(folder)
        first = dict[str, tuple[str, list[str]]]()
        for name, line in GROUPS[group].items():
            began = time.process_time()
            texts[name] = _recorded(line, folder, places, first)
            done(name, texts[name], time.process_time() - began)
    return texts


@contextmanager
def _folder() -> Iterator[Path]:
    """Work in an empty folder, with an empty cache."""
    before, cache = Path.cwd(), os.environ.get("VITLAB_CACHE")
    folder = Path(tempfile.mkdtemp(prefix="golden-")).resolve()
    (folder / "work").mkdir()
    os.chdir(folder / "work")
    os.environ["VITLAB_CACHE"] = str(folder / "cache")
    try:
        yield folder / "work"
    finally:
        os.chdir(before)
        os.environ.pop("VITLAB_CACHE")
        if cache is not None:
            os.environ["VITLAB_CACHE"] = cache
        shutil.rmtree(folder, ignore_errors=True)


def _places(folder: Path) -> list[tuple[str, str]]:
    import vitlab

    source = Path(vitlab.__file__).parent
    return [(str(folder), "WORK"), (str(folder.parent / "cache"), "CACHE"), (str(source), "VITLAB")]


def _recorded(
    line: str,
    folder: Path,
    places: list[tuple[str, str]],
    first: dict[str, tuple[str, list[str]]],
) -> str:
    """Run a line; return what is recorded of it.

    Args:
        line: as `lines.toml` has it
        folder: where it runs
        places: names of folders of this machine
        first: settings that the group has recorded already, by the names of their files
    """
    words, before = shlex.split(spelled(line)), _files(folder)
    status, out, err = run(words)
    shown = pretty(_json(out)) if _json(out) is not None else out
    named = "" if words[:1] == ["python"] else "vitlab "
    parts = [f"$ {named}{spelled(line)}", f"exit {status}"]
    parts += [
        f"== {name}\n{text}"
        for name, text in (("stdout", shown), ("stderr", without_progress(err)))
        if text
    ]
    for name, state in _files(folder).items():
        if before.pop(name, None) != state:
            text = normal(text_of(folder / name), places)  # two runs may start in one second
            parts.append(f"== {name}\n{_shorter(name, text, first)}")
    parts += [f"== {name}\nis gone" for name in before]
    return normal("\n".join(_cut(part.rstrip("\n")) for part in parts) + "\n", places)


def _shorter(name: str, text: str, first: dict[str, tuple[str, list[str]]]) -> str:
    """Return a text whose settings say only how they differ from those recorded before."""
    file = Path(name).name
    if file not in SETTINGS_OF:
        return text
    mark = SETTINGS_OF[file]
    head, _, rest = text.partition(mark) if mark else ("", "", text)
    own = rest.splitlines()
    if file not in first:
        first[file] = (name, own)
        return text
    where, known = first[file]
    changes = [each for each in ndiff(known, own) if each[:2] in ("- ", "+ ")]
    return "\n".join([f"{head}{mark}", f"as {where}, but for", *changes])


def _cut(part: str) -> str:
    """Return the beginning of an output of thousands of lines, and a digest of all."""
    lines = part.splitlines()
    if len(lines) <= MOST:
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:16]
    return "\n".join([*lines[:HEAD], f"and {len(lines) - HEAD} more lines: all have {digest}"])


def run(words: list[str]) -> tuple[int, str, str]:
    """Run `vitlab WORDS` in this process; return its exit status, stdout and stderr."""
    from vitlab.__main__ import main

    python = words[:1] == ["python"]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    given, status = sys.argv[:], 0
    sys.argv[1:] = words
    try:
        with redirect_stdout(out), redirect_stderr(err):
            CALLS[words[1]](*words[2:]) if python else main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        sys.argv[:] = given
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return status, texts[0], texts[1]


def _json(text: str) -> object:
    import json

    try:
        return json.loads(text) if text.startswith("{") else None
    except ValueError:
        return None


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files below a folder that no data set has, by name, with what changes in them."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and name.parts[0] not in MADE:
            about = file.stat()
            found[name.as_posix()] = (about.st_mtime_ns, about.st_size)
    return found
