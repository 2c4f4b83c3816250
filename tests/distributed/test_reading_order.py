"""One process of each machine reads data before the others, which then find it in the cache."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from conftest import photo
from distributed.ranks import on_ranks
from distributed.test_working_alone import TIMEOUT, allow_later
from made_files import encoded, tarred
from object_server import served
from steady import wait_until
from vitlab.data.identities import identities
from vitlab.data.open import open_images
from vitlab.data.sources.listing import record_answer, record_listing, use_listing
from vitlab.data.sources.remote import Stamp, expand, stamp
from vitlab.distributed.launch import joined
from vitlab.distributed.reading import PIECE, read_in_order, send_cache_files
from vitlab.distributed.world import World
from vitlab.errors import DataError, RefusedError


def on_two_machines(world: World, place: Path) -> World:
    """A process of four, which are on two machines with a cache each."""
    os.environ["VITLAB_CACHE"] = str(place / f"cache-{world.rank // 2}")
    return replace(world, local_rank=world.rank % 2, local_size=2)


def told(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(f"{line}\n")


def read_slowly(place: Path, machines: int) -> int:
    """One process, which says when it reads; the first reads for longer than the timeout."""
    with joined("cpu", TIMEOUT) as (world, _):
        here = on_two_machines(world, place) if machines == 2 else world
        if world.rank == world.size - 1:
            allow_later(place / "go")

        def read() -> int:
            told(place / "log", f"begins {world.rank}")
            if world.first:
                wait_until((place / "go").exists)
            told(place / "log", f"ends {world.rank}")
            return world.rank

        return read_in_order(here, read)


@pytest.mark.parametrize("machines", [1, 2])
def test_nobody_reads_before_the_one_that_leads(machines: int, tmp_path: Path) -> None:
    said = on_ranks(4, partial(read_slowly, tmp_path, machines), tmp_path)
    assert [each.get("value", each) for each in said] == [0, 1, 2, 3]
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    assert lines[:2] == ["begins 0", "ends 0"]
    stages = [["2"], ["1", "3"]] if machines == 2 else [["1", "2", "3"]]
    for ranks in stages:
        own = [line for line in lines if line.split()[1] in ranks]
        assert len(own) == 2 * len(ranks)
        assert lines[2 : 2 + len(own)] == own, lines
        lines[2 : 2 + len(own)] = []


def refused(place: Path) -> None:
    with joined("cpu", TIMEOUT) as (world, _):

        def read() -> None:
            told(place / "log", f"begins {world.rank}")
            raise DataError("no such folder")

        read_in_order(world, read)


def test_what_the_first_refuses_is_read_by_no_other(tmp_path: Path) -> None:
    said = on_ranks(2, partial(refused, tmp_path), tmp_path)
    assert [(e["kind"], e["error"], e["quiet"]) for e in said] == [
        ("DataError", "no such folder", False), ("DataError", "no such folder", True),
    ]  # fmt: skip
    assert (tmp_path / "log").read_text() == "begins 0\n"


def sent(place: Path) -> list[int]:
    """One of four processes, of which the first has files that the other machine lacks."""
    with joined("cpu", 60) as (world, _):
        here = on_two_machines(world, place)
        cache = Path(os.environ["VITLAB_CACHE"])
        files = [cache / "shards" / name for name in ("a", "b", "empty", "gone")]
        (cache / "shards").mkdir(parents=True, exist_ok=True)
        if world.first:
            for file, size in zip(files[:3], (PIECE + 5, 7, 0), strict=True):
                file.write_bytes(bytes([size % 251]) * size)
        send_cache_files(here, [*files, place / "elsewhere"] if world.first else [])
        world.sums(0)
        return [file.stat().st_size if file.is_file() else -1 for file in files]


def test_files_of_the_cache_arrive_whole_on_the_other_machine(tmp_path: Path) -> None:
    said = on_ranks(4, partial(sent, tmp_path), tmp_path)
    for each in said[:2]:
        assert each["value"] == [PIECE + 5, 7, 0, -1]
    for each in said[2:]:
        assert each["value"] == [PIECE + 5, 7, -1, -1]
    for name in "ab":
        ours, theirs = (tmp_path / f"cache-{n}" / "shards" / name for n in (0, 1))
        assert ours.read_bytes() == theirs.read_bytes()
    assert sorted(each.name for each in (tmp_path / "cache-1" / "shards").iterdir()) == ["a", "b"]


def opened(data: str, place: Path) -> list[int]:
    """One of four processes on two machines, which opens shards of a server."""
    with joined("cpu", 60) as (world, _):
        here = on_two_machines(world, place)
        source = read_in_order(here, lambda: open_images(data).every())
        numbers = read_in_order(here, lambda: identities(source))
        return [len(source), len({*numbers.tolist()})]


def test_a_server_is_asked_by_one_of_the_processes(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    images = [encoded(photo(seed, 72, 72, seed % 3), "JPEG") for seed in range(8)]
    with served() as server:
        for number in range(2):
            members = [
                member
                for i in range(4 * number, 4 * number + 4)
                for member in ((f"{i}.jpg", images[i]), (f"{i}.cls", str(i % 3).encode()))
            ]
            server.objects[f"b/s-{number}.tar"] = tarred(*members)
        data = f"{server.url}/b/s-{{0,1}}.tar"
        said = on_ranks(4, partial(opened, data, tmp_path), tmp_path)
        assert [each.get("value", each) for each in said] == [[8, 8]] * 4
        asked = sorted(server.requests)
        server.forget()
        alone = on_ranks(1, partial(opened_alone, data, tmp_path), tmp_path)
        assert alone[0]["value"] == [8, 8], alone
        assert asked == sorted(server.requests) != []


def opened_alone(data: str, place: Path) -> list[int]:
    """The same by one process, with a cache of its own."""
    os.environ["VITLAB_CACHE"] = str(place / "cache-alone")
    source = open_images(data).every()
    return [len(source), len({*identities(source).tolist()})]


def test_what_another_process_was_told_is_not_asked_again() -> None:
    url, pattern, missing = "s3://nobody/a.tar", "s3://nobody/*.tar", "s3://nobody/classes.txt"
    with record_listing() as listing:
        record_answer("state", url, [7, "own mark"])
        record_answer("names", pattern, [url])
        record_answer("refusal", missing, "no such file")
    with use_listing(json.loads(json.dumps(listing))), record_listing() as asked:
        assert expand(pattern) == [url]
        assert stamp(url) == Stamp(7, "own mark")
        with pytest.raises(RefusedError, match="no such file"):
            stamp(missing)
    assert asked == {}
