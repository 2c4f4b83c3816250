"""Which parameters each mode trains, and what frozen parts do not do."""

from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import Learner, OwningObjective
from vitlab.recipes.start import Tune
from vitlab.tuning.free import free_names, freeze, train_mode

TINY = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def make(name: str = TINY, **choices: Any) -> Model:
    return vitlab.create(
        name, 5, 16, generator=torch.Generator().manual_seed(0), **({"zero_head": True} | choices)
    )


def trained(model: Model, tune: Tune) -> set[str]:
    freeze(model, tune)
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


HEAD = {"head.classify.weight", "head.classify.bias"}


def test_attention_is_what_the_code_of_three_things_trains() -> None:
    model = make(layer_scale=1e-4, branches=2, qk_norm=True, registers=1)
    free = trained(model, "attention")
    inside = {name for name in free if name.startswith("blocks.")}
    assert free - inside == HEAD | {"positions.0.table"}
    # timm's names of the same weights are `.attn.`; both branches, though its filter misses one
    assert all(".attention." in name and ".body." in name for name in inside)
    assert {name.split(".")[-2] for name in inside} == {"qkv", "project", "q", "k"}
    assert {name.split(".")[3] for name in inside} == {"0", "1"}


def test_ffn_is_the_same_for_the_mlps() -> None:
    free = trained(make(ffn="swiglu", layer_scale=1e-4), "ffn")
    inside = {name for name in free if name.startswith("blocks.")}
    assert free - inside == HEAD | {"positions.0.table"}
    assert {name.split(".", 2)[2] for name in inside} == {
        f"mlp.0.body.{layer}.{kind}"
        for layer in ("expand", "contract")
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("tune", ["head", "lora"])
def test_head_and_lora_leave_only_the_classifier_of_the_model_itself(tune: Tune) -> None:
    assert trained(make(pre_logits=8), tune) == HEAD
    assert trained(make("BiT-R(1-1)x1"), tune) == {"classify.weight", "classify.bias"}


def test_norms_of_every_kind() -> None:
    free = trained(make(stem="hmlp", stem_norm="batch", pre_norm=True, patch=16), "norms")
    kinds = {name.rsplit(".", 1)[0] for name in free} - {"head.classify"}
    assert {"pre_norm", "norm", "blocks.0.attention.0.norm", "blocks.1.mlp.0.norm"} <= kinds
    assert any(kind.startswith("stem.") for kind in kinds)
    free = trained(make("BiT-R(1-1)x1"), "norms")
    assert all("norm" in name or name.startswith("classify") for name in free)
    assert len(free) > 10


def test_the_attention_of_the_pool_counts_and_its_mlp_does_not() -> None:
    free = trained(make(pool="attention"), "attention")
    pool = {name for name in free if name.startswith("head.attend")}
    assert "head.attend.queries" in pool
    assert not any(".mlp." in name for name in pool)
    assert any(
        name.startswith("head.attend.mlp") for name in trained(make(pool="attention"), "ffn")
    )


def test_the_stems_own_attention_stays_frozen() -> None:
    with torch.device("meta"):
        model = vitlab.create("ViT-Ti/16", stem="local")
    assert not any(name.startswith("stem.") for name in trained(model, "attention"))


def test_all_is_everything_and_a_convnet_has_no_attention() -> None:
    model = make()
    assert trained(model, "all") == {name for name, _ in model.named_parameters()}
    with pytest.raises(OptionError, match="has no attention to train: set tune=all or tune=head"):
        free_names(make("BiT-R(1-1)x1"), "attention")
    with torch.device("meta"):
        axial = vitlab.create("Axial-ResNet-50", 5, 32)
    assert any(".qkv." in name for name in free_names(axial, "attention"))


def modes(model: Model) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def test_frozen_batch_norms_keep_their_statistics() -> None:
    model = make(stem="hmlp", stem_norm="batch", patch=16)
    freeze(model, "attention")
    train_mode(model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert any("running_mean" in name for name in before)
    model(torch.rand(4, 3, 16, 16)).sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    freeze(model, "all")
    train_mode(model)
    model(torch.rand(4, 3, 16, 16))
    assert not all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_below_the_lowest_trained_parameter_nothing_is_dropped() -> None:
    model = make(dropout=0.5, drop_path=0.5)
    freeze(model, "head")
    train_mode(model)
    mode = modes(model)
    assert not any(mode[name] for name in mode if name.startswith(("blocks.", "stem", "dropout")))
    images = torch.rand(4, 3, 16, 16)
    assert torch.equal(model.features(images), model.features(images))
    learner = Learner(model, OwningObjective(model.config))  # whose head is beside it
    train_mode(learner.eval())
    assert modes(model) == mode
    assert learner.task.training
    freeze(model, "attention")  # the positions learn: the whole encoder drops
    train_mode(model)
    assert all(on for name, on in modes(model).items() if name.startswith("blocks."))
    for name, weight in model.named_parameters():  # only the last block's attention learns
        weight.requires_grad_(name.startswith("blocks.1.attention."))
    train_mode(model)
    mode = modes(model)
    assert mode["blocks.1"]
    assert mode["blocks.1.mlp.0.drop"]  # frozen, but a gradient passes through it
    assert mode["head"]
    assert not mode["blocks.0"]
    resnet = make("BiT-R(1-1)x1")
    freeze(resnet, "head")
    train_mode(resnet)
    assert not any(
        modes(resnet)[name]
        for name in modes(resnet)
        if name.startswith(("body.stages.", "body.root"))
    )


def test_no_backward_pass_below_the_lowest_trained_parameter() -> None:
    model = make()
    freeze(model, "head")
    train_mode(model)
    assert not model.features(torch.rand(2, 3, 16, 16)).requires_grad


def test_a_module_that_is_not_a_model_simply_trains() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).requires_grad_(False).eval()
    train_mode(module)
    assert all(each.training for each in module.modules())
