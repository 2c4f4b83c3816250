"""Models on a GPU that is not there: no wait, the CPU's numbers; compiled, one graph."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from models.test_architectures import CASES
from models.test_packed import CASES as PACKED
from models.test_packed import a_model, some_images
from on_gpu.a_gpu_there import a_gpu, no_wait
from vitlab.data.augment import mix
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.objectives.classify import objective_of
from vitlab.recipes.recipe import Recipe


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


TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/4"


@pytest.fixture
def graphs() -> Iterator[list[torch.fx.GraphModule]]:
    """The graphs that are compiled; none is kept for the next test."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def counting(graphs: list[torch.fx.GraphModule]) -> Callable[..., Any]:
    """A compiler that counts, and compiles nothing."""

    def compile_(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    return compile_


def test_inference_is_one_graph_for_all_batches(graphs: list[torch.fx.GraphModule]) -> None:
    model = vitlab.fuse(a_case("rope, parallel"))
    compiled = torch.compile(model, fullgraph=True, backend=counting(graphs))
    for size in (2, 3):
        images = torch.rand(size, 3, 32, 32)
        torch._dynamo.mark_dynamic(images, 0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(images), model(images))
    assert len(graphs) == 1


def test_pass_loss_gradient_and_clipping_are_one_graph(graphs: list[torch.fx.GraphModule]) -> None:
    """All of a step on the device between augmentation and the fused optimizer's one kernel."""
    recipe: Recipe = vitlab.recipe("deit3", "digits", model=TINY)
    model = vitlab.create(
        TINY, 10, 16, channels=3, drop_path=0.5, layer_scale=0.1, zero_head=False
    ).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    mixed = mix.draw(recipe.augment, 3, (16, 16))
    objective = objective_of(recipe.objective)

    def gradient(images: Tensor, labels: Tensor) -> list[Tensor]:
        targets: Tensor = labels
        if mixed is not None:
            images, targets = mixed(images, labels, 10)
        loss = objective.mean(model(images).float(), targets)
        found = list(torch.autograd.grad(loss, weights))
        norm = torch.nn.utils.get_total_norm(found)
        factor = (recipe.optimizer.clip / (norm + 1e-6)).clamp(max=1.0)
        return [loss.detach(), norm, *torch._foreach_mul(found, factor)]

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this PyTorch traces no gradients")
    compiled = torch.compile(gradient, fullgraph=True, backend=counting(graphs), dynamic=False)
    images, labels = torch.rand(6, 3, 16, 16), torch.arange(6)
    results = []
    for form in (gradient, compiled, compiled):
        torch.manual_seed(0)
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            results.append(form(images.clone(), labels))
    assert len(graphs) == 1
    for got in results[1:]:
        for mine, theirs in zip(got, results[0], strict=True):
            torch.testing.assert_close(mine, theirs)
