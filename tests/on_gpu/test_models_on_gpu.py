"""Every architecture on a GPU that is not there: one device, no wait, the CPU's own numbers."""

import re

import pytest
import torch
from torch import Tensor, nn

import vitlab
from models.test_architectures import CASES, PARTS
from models.test_packed import CASES as PACKED
from models.test_packed import a_model, some_images
from on_gpu.a_gpu_there import a_gpu, no_wait
from on_gpu.stand_in import StandIn
from vitlab.models.model import Model
from vitlab.models.packed import Packed


def a_case(case: str) -> Model:
    """A small model of the same architecture."""
    name, choices = CASES[case]
    small = {"width": 64, "depth": 2, "heads": 4, "mlp": 96}
    shape = [f"{field}={choices.get(field, value)}" for field, value in small.items()]
    if branches := re.search(r"Ti2x(\d)", name):
        shape.append(f"branches={branches[1]}")
    name = re.sub(r"ViT-Ti2(x\d)?", f"ViT({','.join(shape)})", name)
    rest = {field: value for field, value in choices.items() if field not in small}
    generator = torch.Generator().manual_seed(0)
    return vitlab.create(name, 5, 32, generator=generator, zero_head=False, **rest).eval()


@pytest.mark.parametrize("case", PARTS)
def test_passes_neither_wait_nor_differ(case: str) -> None:
    model = a_case(case)
    images = torch.rand(2, model.config.channels, 32, 32, generator=torch.Generator())
    with torch.no_grad():
        want = [model(images), model.intermediates(images, [0])[0][0]]
    with a_gpu() as gpu:
        there = images.to("cuda")
        model = model.to("cuda")
        fused = vitlab.fuse(model)
        with torch.no_grad(), no_wait(gpu):
            got = [model(there), model.intermediates(there, [0])[0][0], fused(there)]
        got = [each.cpu() for each in got]
        with no_wait(gpu):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model.train()(there).float().square().mean()
            loss.backward()
    for mine, theirs in zip(got, [*want, want[0]], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


ALIKE = (  # in what they start on a GPU, to one of the others
    "mean", "prefix", "slots", "norm pooled", "none", "stem norm", "branches", "grid rope",
    "1d+bias",
)  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(e, marks=[pytest.mark.campaign] * (e in ALIKE)) for e in PACKED]
)
def test_packed_images_neither_wait_nor_differ(case: str) -> None:
    model = a_model(**PACKED[case])
    packed = Packed.of(some_images(model.config.patch), model.config.patch)  # type: ignore[union-attr]
    with torch.no_grad():
        want = model(packed)
    with a_gpu() as gpu:
        there = packed.to(torch.device("cuda"))
        model = model.to("cuda")
        with torch.no_grad(), no_wait(gpu):
            got = model(there)
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-6)
        with no_wait(gpu):
            with torch.autocast("cuda", torch.bfloat16):  # the kernel for variable lengths
                loss = model.train()(there).float().square().mean()
            loss.backward()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_are_made_on_the_device_that_is_asked_for(device: str) -> None:
    with a_gpu():
        model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 32).to(device)
        assert {each.device.type for each in _all(model)} == {device}
        other = model.resize(48)
        other(torch.rand(1, 3, 48, 48, device=next(other.parameters()).device))


def _all(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_the_stand_in_is_gone() -> None:
    assert StandIn.current is None
