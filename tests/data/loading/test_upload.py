"""The next batch is copied beside the step before: what is queued where, without a GPU."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from vitlab.data.loading.batches import Batch
from vitlab.data.loading.loader import Upload
from vitlab.models.packed import Packed


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


@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_is_queued_on_its_own_stream(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """On tensors of no device, in place of a GPU's."""
    events: list[str] = []
    beside, computing = Stream("beside", events), Stream("computing", events)
    now = [computing]

    @contextmanager
    def on(stream: Stream) -> Any:
        now.append(stream)
        yield
        now.pop()

    plain = Batch.to

    def to(self: Batch, device: torch.device) -> Batch:
        events.append(f"copied on {now[-1].name}")
        return plain(self, torch.device("meta"))

    recorded: list[torch.Tensor] = []

    def record(tensor: torch.Tensor, stream: Stream) -> None:
        assert stream is computing
        recorded.append(tensor)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: beside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(Batch, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", record)
    images: Any = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    images = Packed(torch.zeros(5, 12), ((1, 2), (1, 3)), 2) if packed else images
    views = (batch_of(torch.zeros(2, 2, 2, 3), 2),)
    moved = Upload(torch.device("cuda"))(replace(batch_of(images, 2), views=views))
    assert events == ["copied on beside", "computing waits for beside"]
    there = [each for each in tensors_of(moved) if each.device.type == "meta"]
    kept = {id(each) for each in recorded}
    assert len(there) >= 4  # images and labels, twice
    assert {id(each) for each in there} == kept
    first = moved.images.patches if isinstance(moved.images, Packed) else moved.images
    assert first.device.type == "meta"
