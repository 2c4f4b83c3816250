"""Worker processes of a loader: what they say when nobody listens anymore."""

import contextlib
import io
import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from conftest import photo, photo_folder
from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.cache import CachedPixels, cached
from vitlab.data.loading.loader import Upload, choose_workers, loader
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.memory import digits
from vitlab.data.summary import divided, input_shape
from vitlab.errors import DataError
from vitlab.models.config import ViTConfig
from vitlab.models.packed import Packed


class Hangs(Dataset[str]):
    """An item is what a worker prints when a receiver of its batches hangs up."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                raise self.error("gone")
            except self.error:
                sys.excepthook(*sys.exc_info())
        return said.getvalue()


def test_a_parent_that_hangs_up_is_no_error() -> None:
    for error in (EOFError, BrokenPipeError):
        assert list(loader(Hangs(error), range(1), 1)) == [""]
    (said,) = loader(Hangs(ZeroDivisionError), range(1), 1)
    assert said.endswith("ZeroDivisionError: gone\n")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.workers)]
)
def test_a_signal_to_all_reaches_no_worker_before_it_is_ready(number: signal.Signals) -> None:
    """Such as a terminal's Ctrl-C, while a worker that was not forked still imports PyTorch."""
    loaded = iter(loader(Hangs(EOFError), range(1), 1))
    others = [each.pid for each in multiprocessing.active_children()]
    for pid in (*others, forkserver._forkserver._forkserver_pid):
        if pid is not None:
            os.kill(pid, number)
    assert next(loaded) == ""
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.workers
def test_data_that_no_worker_can_get_is_named_in_one_line() -> None:
    local = Hangs(EOFError)
    local.own = lambda: None  # type: ignore[attr-defined]
    if multiprocessing.get_start_method() == "fork":
        assert list(loader(local, range(1), 1)) == [""]
        return
    with pytest.raises(DataError, match=r"cannot be sent to worker processes \(.*lambda"):
        list(loader(local, range(1), 1))


@pytest.fixture
def small(tmp_path: Path) -> Images:
    source = open_to_learn(str(photo_folder(tmp_path / "p", {"a": 9, "b": 9}))).whole
    assert isinstance(source.store, ImageFiles)
    return source


def test_batches_are_the_same(small: Images) -> None:
    memory = cached(small, 3)
    assert isinstance(memory.store, CachedPixels)
    assert (memory.classes, len(memory)) == (small.classes, len(small))
    config = ViTConfig(width=8, heads=2, patch=8, image_size=16)
    options = Augment(area=0.3, flip=True)
    for k in range(3):
        one, other = (TrainingBatches(s, config, options, 3, 4)[k] for s in (small, memory))
        assert np.array_equal(one.images, other.images)
        assert np.array_equal(one.labels, other.labels)
    assert choose_workers(memory, None) == 0
    assert choose_workers(small, None) > 0
    assert memory.name(3) == small.name(3)


def test_what_cannot_be_cached_stays_where_it_is(small: Images, tmp_path: Path) -> None:
    assert cached(digits(), 1) is not None
    file = small.store.root / small.store.paths[4]
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], None):
        if content is None:
            Image.new("RGB", (7, 9)).save(file)
        else:
            file.write_bytes(content)
        assert cached(small, 3) is small
    big = photo_folder(tmp_path / "big", {"a": 6, "b": 6}, rows=70, columns=80)
    source = open_to_learn(str(big)).train
    assert cached(source, 3) is source


def test_sizes_and_channels_come_from_the_images(tmp_path: Path) -> None:
    mixed = photo_folder(tmp_path / "mixed", {"a": 3, "b": 3})
    photo(0, 40, 40).save(mixed / "a" / "000.png")
    assert input_shape(open_images(str(mixed)).every())[0] == 224
    for place, mode, rows, columns, shape in (
        ("gray", "L", 20, 20, (20, 1)), ("large", "RGB", 300, 400, (224, 3)),
    ):  # fmt: skip
        for name in "ab":
            (tmp_path / place / name).mkdir(parents=True)
            for i in range(3):
                image = photo(i, rows, columns).convert(mode)
                image.save(tmp_path / place / name / f"{i}.jpg")
        assert input_shape(open_to_learn(str(tmp_path / place)).train) == shape


def test_a_size_that_the_patch_does_not_divide() -> None:
    for size, patch, near in (
        (250, 16, (256, 256)), ((100, 150), 32, (96, 160)), (8, 3, (9, 9)), (5, 16, (16, 16)),
    ):  # fmt: skip
        found, remarks = divided(size, patch)
        assert found == near
        assert f"resized to {near[0]}x{near[1]}" in remarks[0]
        assert divided(near, patch) == (near, [])


def batch_of(images: torch.Tensor | Packed, count: int) -> Batch:
    return Batch(images, torch.arange(count), torch.rand(count, 4), torch.arange(count))


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    fields = [field for view in (batch, *batch.views) for field in vars(view).values()]
    plain = [field.patches if isinstance(field, Packed) else field for field in fields]
    return [each for each in plain if isinstance(each, torch.Tensor)]


def test_on_a_cpu_a_batch_stays_itself() -> None:
    batch = batch_of(torch.zeros(2, 4, 4, 3, dtype=torch.uint8), 2)
    assert Upload(torch.device("cpu"))(batch) is batch


class Stream:
    """Notes what is asked of it."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: "Stream") -> None:
        self.events.append(f"{self.name} waits for {other.name}")


def test_a_copy_is_queued_on_its_own_stream(monkeypatch) -> None:
    """On tensors of no device, in place of a GPU's."""
    events: list[str] = []
    beside, computing = Stream("beside", events), Stream("computing", events)
    now, recorded, plain = [computing], list[torch.Tensor](), Batch.to

    @contextmanager
    def on(stream: Stream) -> Any:
        now.append(stream)
        yield
        now.pop()

    def to(self: Batch, device: torch.device) -> Batch:
        events.append(f"copied on {now[-1].name}")
        return plain(self, torch.device("meta"))

    def record(tensor: torch.Tensor, stream: Stream) -> None:
        assert stream is computing
        recorded.append(tensor)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: beside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(Batch, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", record)
    views = (batch_of(torch.zeros(2, 2, 2, 3), 2),)
    for images in (torch.zeros(2, 4, 4, 3), Packed(torch.zeros(5, 12), ((1, 2), (1, 3)), 2)):
        events.clear()
        recorded.clear()
        moved = Upload(torch.device("cuda"))(replace(batch_of(images, 2), views=views))
        assert events == ["copied on beside", "computing waits for beside"]
        there = [each for each in tensors_of(moved) if each.device.type == "meta"]
        assert len(there) >= 4  # images and labels, twice
        assert {id(each) for each in there} == {id(each) for each in recorded}
        first = moved.images.patches if isinstance(moved.images, Packed) else moved.images
        assert first.device.type == "meta"
