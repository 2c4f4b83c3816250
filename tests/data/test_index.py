"""Identities of images that are remembered: the same numbers, and no file is read twice."""

import multiprocessing
import os
import pickle
import signal
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from made_files import png
from vitlab.data.identities import identities
from vitlab.data.images import Images
from vitlab.data.open import open_images
from vitlab.errors import DataError

PICTURE = png(0)
OLD = 1_600_000_000  # seconds: a time that no file of a test has by itself
COUNTS: list["Count"] = []  # of what is opened now


@dataclass
class Count:
    """The images that are opened, by their last names, and how many may be."""

    most: int
    names: list[str] = field(default_factory=list)


def note_opened(event: str, details: tuple[object, ...]) -> None:
    if COUNTS and event == "open" and isinstance(details[0], str | bytes):
        name = Path(os.fsdecode(details[0])).name
        if name.endswith((".png", ".tar")):
            COUNTS[-1].names.append(name)
            if len(COUNTS[-1].names) > COUNTS[-1].most:
                raise KeyboardInterrupt


sys.addaudithook(note_opened)  # for good: Python takes no hook back


@contextmanager
def opened_images(most: int = 10_000) -> Iterator[list[str]]:
    """The images that this process opens in the block; before further ones it is interrupted."""
    COUNTS.append(Count(most))
    try:
        yield COUNTS[-1].names
    finally:
        COUNTS.pop()


def content_of(number: int, size: int = 0) -> bytes:
    """A file that begins as an image does; no two are the same."""
    return PICTURE + number.to_bytes(8) * (1 + size // 8)


def write_image(file: Path, content: bytes, when: float = OLD) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    os.utime(file, (when, when))


def plain_identity(content: bytes) -> int:
    """What identifies an image, as the first release computed it."""
    size, piece = len(content), 8192
    if size > 3 * piece:
        middle = (size - piece) // 2
        content = content[:piece] + content[middle : middle + piece] + content[-piece:]
    return int.from_bytes(blake2b(size.to_bytes(8) + content, digest_size=8).digest())


def number_of_name(name: str) -> int:
    """What identifies an image that cannot be read."""
    return int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders with 40 images, two of them large."""
    for number in range(40):
        content = content_of(number, 30_000 if number < 2 else 0)
        write_image(tmp_path / "data" / "ab"[number % 2] / f"{number:02d}.png", content)
    return tmp_path / "data"


def source_of(data: Path | str) -> Images:
    return open_images(str(data), "none").every()


def expected(source: Images) -> list[int]:
    return [plain_identity(source.image(number).content()) for number in range(len(source))]


def indices() -> list[Path]:
    return sorted(each for each in Path(os.environ["VITLAB_CACHE"]).rglob("index/*-*"))


def check(source: Images, opened: set[str]) -> None:
    """Compare identities with the plain ones, and the files that are opened for them."""
    wanted = expected(source)
    with opened_images() as names:
        found = identities(source)
    assert found.tolist() == wanted
    assert sorted(names) == sorted(opened)


def test_files_that_were_seen_are_not_opened_again(folder: Path) -> None:
    every = {f"{number:02d}.png" for number in range(40)}
    check(source_of(folder), every)
    check(source_of(folder), set())
    check(source_of(folder).take(np.array([30, 2, 7])), set())
    write_image(folder / "a" / "00.png", content_of(100), OLD + 1)  # other bytes
    check(source_of(folder), {"00.png"})
    check(source_of(folder), set())
    file = folder / "a" / "02.png"
    write_image(file, content_of(101))  # as many bytes, and the old time put back
    assert file.stat().st_mtime == OLD
    check(source_of(folder), {"02.png"})


def test_a_part_that_was_read_is_known_later(folder: Path) -> None:
    source = source_of(folder)
    check(source.take(np.array([3, 5])), {Path(source.name(n)).name for n in (3, 5)})
    check(source, {Path(source.name(n)).name for n in range(40)} - {
        Path(source.name(n)).name for n in (3, 5)})  # fmt: skip
    check(source_of(folder), set())


def test_added_removed_and_renamed_files(folder: Path) -> None:
    identities(source_of(folder))
    write_image(folder / "b" / "new.png", content_of(200))
    (folder / "a" / "04.png").unlink()
    (folder / "b" / "05.png").rename(folder / "a" / "moved.png")
    check(source_of(folder), {"new.png", "moved.png"})
    check(source_of(folder), set())
    assert len(indices()) == 2
    (folder / "b" / "new.png").unlink()
    for number in range(20):  # each list is another
        write_image(folder / "a" / f"more-{number}.png", content_of(300 + number))
        identities(source_of(folder))
    assert len(indices()) == 8


def test_a_file_that_may_change_within_its_time_is_read_again(folder: Path) -> None:
    file = folder / "a" / "06.png"
    file.write_bytes(content_of(400))  # now
    identities(source_of(folder))
    check(source_of(folder), {"06.png"})
    os.utime(file, (OLD, OLD))
    check(source_of(folder), {"06.png"})
    check(source_of(folder), set())


def test_files_that_cannot_be_read_are_known_by_their_paths_and_tried_again(folder: Path) -> None:
    source = source_of(folder)
    gone = folder / "b" / "39.png"
    there = gone.read_bytes()
    gone.unlink()
    for _ in range(2):
        assert identities(source)[-1] == number_of_name(str(gone))
    write_image(gone, there)
    check(source, {"39.png"})


@pytest.mark.parametrize("damage", [
    lambda content: content[:-1],
    lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:],
    lambda content: content + b"x",
    lambda content: b"",
    lambda content: content.replace(b'"version": 1', b'"version": 0'),
    lambda content: b"[]" + content,
])  # fmt: skip
def test_damage_and_other_versions_are_built_anew(
    folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    identities(source_of(folder))
    (file,) = indices()
    before = file.read_bytes()
    file.write_bytes(damage(before))
    check(source_of(folder), {f"{number:02d}.png" for number in range(40)})
    assert file.read_bytes() == before
    check(source_of(folder), set())


def test_a_cache_that_cannot_be_written(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path / "file"))
    every = {f"{number:02d}.png" for number in range(40)}
    check(source_of(folder), every)
    check(source_of(folder), every)
    assert capsys.readouterr() == ("", "")


def test_members_of_archives_and_rows_of_tables(folder: Path, tmp_path: Path) -> None:
    files = sorted(folder.rglob("*.png"))
    with tarfile.open(tmp_path / "data.tar", "w") as shard:
        for file in files:
            shard.add(file, f"{file.stem}.png")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / f"data-{method}.zip", "w", method) as archive:
            for file in files:
                archive.write(file, file.name)
    rows = [{"image": {"bytes": file.read_bytes(), "path": None}} for file in files]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    places = sorted(tmp_path.glob("data?*"))
    assert len(places) == 4
    for place in places:
        os.utime(place, (OLD, OLD))
        source = source_of(place)
        wanted = expected(source)
        assert identities(source).tolist() == wanted
        assert identities(source_of(place)).tolist() == wanted
    for place in places[:3]:
        source = source_of(place)
        place.write_bytes(bytes(place.stat().st_size))
        os.utime(place, (OLD, OLD))  # it is read, since another time says so, and is damaged
        found = identities(source)
        names = [source.name(number) for number in range(len(source))]
        assert found.tolist() == [number_of_name(name) for name in names]


def test_a_tar_that_was_seen_is_not_opened_for_its_images(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(place := tmp_path / "data.tar", "w") as shard:
        for file in sorted(folder.rglob("*.png")):
            shard.add(file, f"{file.stem}.png")
    source = source_of(place)
    with opened_images() as names:
        found = identities(source)
    assert names.count("data.tar") >= 40
    os.utime(place, (OLD, OLD))
    identities(source)
    with opened_images() as names:
        assert identities(source).tolist() == found.tolist()
        assert identities(source_of(place)).tolist() == found.tolist()
    assert names.count("data.tar") == 1  # its headers, for the state


def test_files_that_cells_name_are_read_again(folder: Path) -> None:
    rows = [{"image": {"bytes": None, "path": f"a/{number:02d}.png"}} for number in (0, 2, 4)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), place := folder / "t.parquet")
    os.utime(place, (OLD, OLD))
    source = source_of(place)
    check(source, {"00.png", "02.png", "04.png"})
    write_image(folder / "a" / "02.png", content_of(500))
    check(source, {"00.png", "02.png", "04.png"})


def work_apart(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a function in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def compare(source: Images, together: Barrier, wanted: list[int]) -> None:
    together.wait()
    assert identities(source).tolist() == wanted


def test_two_processes_at_once(folder: Path) -> None:
    for number in range(1000):
        write_image(folder / "c" / f"{number}.png", content_of(1000 + number))
    source = source_of(folder)
    together = multiprocessing.get_context("fork").Barrier(2)
    both = [work_apart(compare, source, together, expected(source)) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    check(source_of(folder), set())


def kill_before(ending: str, source: Images) -> None:
    """Identify images, but end before a file is opened in whose path this stands."""

    def kill(event: str, details: tuple[object, ...]) -> None:
        if event == "open" and ending in os.fsdecode(str(details[0])):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    identities(source)


def test_a_process_that_is_killed_leaves_nothing_half_done(folder: Path) -> None:
    source = source_of(folder)
    identities(source)
    (file,) = indices()
    file.unlink()
    for ending in ("30.png", f".{file.name}"):
        process = work_apart(kill_before, ending, source)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not indices()
    check(source, {f"{number:02d}.png" for number in range(40)})


def test_a_pass_that_was_interrupted_goes_on_where_it_was(folder: Path) -> None:
    for number in range(300):
        write_image(folder / "c" / f"{number:03d}.png", content_of(1000 + number))
    source = source_of(folder)
    wanted = expected(source)
    with opened_images(most=320), pytest.raises(KeyboardInterrupt):
        identities(source)
    with opened_images() as names:
        assert identities(source).tolist() == wanted
    assert len(names) == 340 - 256  # what was done of the first chunks


def test_names_of_a_list_that_is_remembered_are_sent_by_their_file(folder: Path) -> None:
    for number in range(1000):
        write_image(folder / "c" / f"a-long-name-of-an-image-{number}.png", content_of(number))
    source = source_of(folder)
    names = [source.name(number) for number in range(len(source))]
    assert len(pickle.dumps(source)) > 30 * len(source)
    identities(source)
    sent = pickle.dumps(source)
    assert len(sent) < 15 * len(source)  # of which the labels are 8 each
    again = pickle.loads(sent)
    assert [again.name(number) for number in range(len(source))] == names
    indices()[0].unlink()
    assert [source.name(number) for number in range(len(source))] == names
    again = pickle.loads(pickle.dumps(again))
    assert [again.name(number) for number in range(len(source))] == names
    with pytest.raises(DataError, match="was removed while it was used"):
        pickle.loads(sent)


def test_a_saved_table_is_remembered_by_its_rows(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"image": {"bytes": content_of(number), "path": None}} for number in range(10)]
    table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    members = Path(os.environ["VITLAB_CACHE"]) / "index" / "members"
    for count, own in ((1, table), (2, table.select(range(3, 8)))):
        own.save_to_disk(place := tmp_path / f"saved-{count}")
        for file in place.iterdir():
            os.utime(file, (OLD, OLD))
        for _ in range(2):
            source = source_of(place)
            assert identities(source).tolist() == expected(source)
            assert len(list(members.iterdir())) == count
