"""Files as they are released: read as their authors' code computes, or refused with the reason."""

import math
from pathlib import Path
from typing import Any

import pytest

from vitlab.errors import UserError
from vitlab.weights.assembly import empty
from vitlab.weights.formats.format_api import Hints, Reading
from vitlab.weights.formats.records import assumed
from vitlab.weights.load import recognize
from vitlab.weights.matching import check, collect
from weights.released.table import Row, rows, write

ROWS = rows()
ROTARY = ("rope_kind", "rope_base", "rope_grid", "rope_offset")
SMALL = 10_000_000  # numbers of a file that are read as well


def read(path: Path, **told: Any) -> Reading:
    name, part = str(told.pop("name", "")), str(told.pop("part", ""))
    source, reading = recognize(path, Hints(name, told, part=part))
    check(reading, source, empty(reading.config))
    if sum(map(math.prod, source.shapes.values())) < SMALL:
        collect(reading, source)
    return reading


def wrong(reading: Reading, wanted: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields that are not as wanted: what they are, and what they should be."""
    fields = {name: getattr(reading.config, name, None) for name in wanted}
    if reading.image_size is not None:  # that its processor prepares, not of its positions
        fields["image_size"] = reading.image_size
    return {name: (fields[name], want) for name, want in wanted.items() if fields[name] != want}


def doubts(reading: Reading) -> set[str]:
    """Fields that are only assumed: if positions are, so is all that belongs to them."""
    fields = set(assumed(reading.config, reading.origins))
    return fields | (set(ROTARY) if "positions" in fields else set())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_released_file_is_read_as_its_authors_code_computes(row: Row, tmp_path: Path) -> None:
    path, told = write(row, tmp_path), dict(row.tell)
    if row.refused:
        with pytest.raises(UserError, match=row.refused):
            read(path)
        return
    if row.part:
        told["part"] = row.part
    if row.asks:
        with pytest.raises(UserError, match=row.asks):
            read(path)
    reading = read(path, **told)
    found = wrong(reading, row.wanted)
    silent = found.keys() - doubts(reading)
    assert not silent, {name: found[name] for name in silent}
    assert sorted(found) == sorted(row.doubtful), found
    if found:  # the options that the warning names settle it
        settle = row.settle or {name: row.wanted[name] for name in found}
        assert not wrong(read(path, **told, **settle), row.wanted)
