"""Every architecture on a GPU that is not there: one device, no wait, the CPU's own numbers."""

import pytest
import torch

import vitlab
from models.test_architectures import CASES
from models.test_packed import CASES as PACKED
from models.test_packed import a_model, some_images
from on_gpu.a_gpu_there import a_gpu, no_wait
from vitlab.models.model import Model
from vitlab.models.packed import Packed


def a_case(case: str) -> Model:
    """A small model of the same architecture."""
    name, choices = CASES[case]
    generator = torch.Generator().manual_seed(0)
    return vitlab.create(name, 5, 32, generator=generator, zero_head=False, **choices).eval()


FEW = (
    "parallel", "hMLP, BN", "local", "hybrid", "1d, every", "2d, shared", "relative", "BEiT",
    "EVA-02", "Perception Encoder", "axial, parallel", "BiT", "Axial ResNet",
)  # fmt: skip


@pytest.mark.parametrize("case", FEW)
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


@pytest.mark.parametrize(
    "case", ["token", "both", "attention", "1d, every", "rope", "bias", "axial"]
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


def test_models_are_made_on_the_device_that_is_asked_for() -> None:
    with a_gpu():
        for device in ("cpu", "cuda"):
            model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 32).to(device)
            tensors = [*model.parameters(), *model.buffers()]
            assert {each.device.type for each in tensors} == {device}
            model.resize(48)(torch.rand(1, 3, 48, 48, device=device))
