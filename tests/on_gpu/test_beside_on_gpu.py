"""What is copied beside a GPU that is not there: batches to it, and predictions from it."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from on_gpu.a_gpu_there import a_gpu, no_wait
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.batches import Batch
from vitlab.data.loading.loader import Upload
from vitlab.device import STAGED, fetched, sent
from vitlab.evaluation import infer as room
from vitlab.evaluation.compute import Compute


def test_a_batch_is_on_its_way_without_a_wait() -> None:
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    batch = Batch(images, torch.arange(2), torch.rand(2, 4), torch.arange(2))
    with a_gpu() as gpu:
        upload = Upload(torch.device("cuda"))
        with no_wait(gpu):
            there = upload(batch)
        assert isinstance(there.images, Tensor)
        assert (there.images.device.type, there.labels.device.type) == ("cuda", "cuda")
        assert there.draws is batch.draws  # read on the host
        assert torch.equal(there.images.cpu(), images)


def test_copies_both_ways_wait_only_where_they_are_read() -> None:
    large = torch.arange(STAGED, dtype=torch.float32)
    with a_gpu() as gpu:
        with no_wait(gpu):
            there = sent(large, torch.device("cuda"))
            read = fetched([there, there + 1])
        first, second = read()
        assert gpu.waits
    assert torch.equal(first, large)
    assert torch.equal(second, large + 1)


@pytest.mark.parametrize("flips", [False, True])
def test_predictions_are_read_one_batch_late(monkeypatch: pytest.MonkeyPatch, flips: bool) -> None:
    """And they are those of a CPU, in its order."""
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 10, 8, channels=1)
    torch.nn.init.normal_(model.head.classify.weight, std=0.1)
    source = open_to_learn("digits").test
    monkeypatch.setattr(room, "BATCH", 100)
    events: list[str] = []
    begun = room._Pass.begun

    def noted(*args: object) -> object:
        events.append("begun")
        ready = begun(*args)  # type: ignore[arg-type]

        def read() -> room.Inferred:
            events.append("read")
            return ready()

        return read

    def parts(device: str) -> Iterator[room.Inferred]:
        compute = Compute(torch.device(device), engine="plain", workers=0)
        return room.infer(model, source, compute, flips=flips)

    want = list(parts("cpu"))
    monkeypatch.setattr(room._Pass, "begun", noted)
    with a_gpu():
        got = list(parts("cuda"))
    assert events == ["begun", "begun", "read", "begun", "read", "begun", "read", "read"]
    for mine, theirs in zip(got, want, strict=True):
        assert np.array_equal(mine.indices, theirs.indices)
        np.testing.assert_allclose(mine.probabilities, theirs.probabilities, atol=1e-5)
        np.testing.assert_allclose(mine.logits, theirs.logits, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_fast_form_never_waits(precision: str) -> None:
    """Its outputs are near the model's."""
    model = vitlab.create("ViT(width=64,depth=2,heads=4,mlp=128)/8", 5, 32, branches=2)
    torch.nn.init.normal_(model.head.classify.weight, std=0.1)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        want = model(images)
    with a_gpu() as gpu, torch.no_grad():
        fast = vitlab.accelerate(model, device="cuda", precision=precision, engine="packed")  # type: ignore[arg-type]
        there = images.to("cuda")
        fast(there)
        with no_wait(gpu):
            got = fast(there)
            fast.features(there)
        got = got.cpu()
    assert got.dtype is torch.float32
    assert (got - want).norm() <= (1e-5 if precision == "fp32" else 0.05) * want.norm()
