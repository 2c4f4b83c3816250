"""What is compiled is one graph, for every batch: no graph breaks and no recompilation."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from on_gpu.test_models_on_gpu import a_case
from vitlab.data.augment import mix
from vitlab.objectives.classify import objective_of
from vitlab.recipes.recipe import Recipe

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
