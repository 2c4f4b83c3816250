"""What the command line printed and left on disk is what it prints and leaves.

`python tests/golden/record.py` records anew where a change is meant, in a commit that changes
nothing else.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from golden.difference import SHOWN, differences
from golden.lines import GROUPS
from golden.recording import EXPECTED, prepare, record


@pytest.fixture(scope="session")
def apart() -> Iterator[ProcessPoolExecutor]:
    """A process of its own, in which nothing is stubbed: reports, folds and resamples are whole."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare) as pool:
        yield pool


@pytest.mark.parametrize("group", GROUPS)
def test_lines_print_and_leave_what_they_did(group: str, apart: ProcessPoolExecutor) -> None:
    texts = apart.submit(record, group).result()
    files = {
        file.stem: file.read_text(encoding="utf-8") for file in (EXPECTED / group).glob("*.txt")
    }
    told = []
    for name in sorted(texts.keys() | files.keys()):
        found = differences(files.get(name, ""), texts.get(name, ""))
        if found:
            line = texts.get(name, files.get(name, "")).partition("\n")[0]
            told += [f"\n{group}/{name}: {line}", *(f"  {each}" for each in found[:SHOWN])]
            told += [f"  … {len(found) - SHOWN} more"] * (len(found) > SHOWN)
    assert not told, "\n".join(told)
