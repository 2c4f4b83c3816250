"""Models behind the surfaces of timm and transformers, compared with theirs."""

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import vitlab
from conftest import environment
from oracles import peers
from vitlab.errors import OptionError, PackageError

peers.prepare_torchvision()
timm = pytest.importorskip("timm")
optim = pytest.importorskip("timm.optim")
TINY = {"depth": 3, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8}
NAMES = (
    "vit_tiny_patch16_224",
    "vit_small_patch16_dinov3",  # registers, rotary positions
    "deit3_small_patch16_224",
    "vit_base_patch16_siglip_224",  # attention pooling
    "vit_base_patch16_clip_224",  # a norm before the blocks
)
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Timm's model with random weights, and the same weights behind our surface."""
    other = timm.create_model(request.param, num_classes=5, **TINY).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    folder = str(tmp_path_factory.mktemp("timm"))
    timm.models._hub.save_for_hf(other, folder, safe_serialization=True, model_args=TINY)
    return other, vitlab.load(folder)


def test_forward_passes_are_those_of_timm(pair: Any) -> None:
    other, model = pair
    own = vitlab.adapters.timm(model)
    theirs, ours = other.forward_features(IMAGES), own.forward_features(IMAGES)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    torch.testing.assert_close(own(IMAGES), other(IMAGES), rtol=0, atol=1e-5)
    seen, expected = (each.forward_head(theirs, pre_logits=True) for each in (own, other))
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"indices": 2},
        {"indices": [0, -1], "norm": True, "return_prefix_tokens": True},
        {"output_fmt": "NLC", "intermediates_only": True, "stop_early": True},
        {"indices": [1], "intermediates_only": True, "return_prefix_tokens": True},
    ],
)
def test_intermediates_are_those_of_timm(pair: Any, arguments: dict[str, Any]) -> None:
    other, model = pair
    own = vitlab.adapters.timm(model)
    theirs, ours = (each.forward_intermediates(IMAGES, **arguments) for each in (other, own))
    assert type(theirs) is type(ours)
    compared = list(zip(tree_leaves(ours), tree_leaves(theirs), strict=True))
    assert compared
    for mine, expected in compared:
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
    if hasattr(other, "get_intermediate_layers"):
        old = [each.get_intermediate_layers(IMAGES, n=[1], reshape=True) for each in (own, other)]
        torch.testing.assert_close(old[0][0], old[1][0], rtol=0, atol=1e-5)


def test_attributes_are_those_of_timm(pair: Any) -> None:
    other, model = pair
    own = vitlab.adapters.timm(model)
    names = ("num_classes", "num_features", "embed_dim", "head_hidden_size", "num_prefix_tokens")
    for name in (*names, "global_pool"):
        assert getattr(own, name) == getattr(other, name), name
    for name in ("img_size", "patch_size", "grid_size", "num_patches"):
        assert getattr(own.patch_embed, name) == getattr(other.patch_embed, name), name
    data = timm.data.resolve_model_data_config
    assert data(own) == data(other) | {"input_size": (3, 32, 32)}  # timm's has that of the name
    for mine, theirs in zip(own.feature_info, other.feature_info, strict=True):
        assert mine | {"module": ""} == theirs | {"module": ""}
        assert own.get_submodule(mine["module"]) is own.blocks[own.feature_info.index(mine)]


def test_timms_optimizers_group_as_they_do_for_timms_model(pair: Any) -> None:
    other, model = pair
    if getattr(other, "attn_pool", None) is not None:
        pytest.skip("timm decays the pool's query, its authors do not")
    own = vitlab.adapters.timm(model)

    def groups(each: Any) -> list[tuple[float, float, int]]:
        found = optim.param_groups_layer_decay(each, 0.05, each.no_weight_decay(), layer_decay=0.5)
        return [(g["lr_scale"], g["weight_decay"], len(g["params"])) for g in found]

    assert sorted(groups(own)) == sorted(groups(other))


def test_a_new_classifier_another_size_and_less_memory() -> None:
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 3, 32, generator=generator)
    own = vitlab.adapters.timm(model)
    assert own.get_classifier() is model.head.classify
    body = own.model.blocks[0].mlp[0].norm.weight
    own.reset_classifier(7, "avg")
    assert own(IMAGES).shape == (2, 7)
    assert own.global_pool == "avg"
    assert own.model.blocks[0].mlp[0].norm.weight is body, "the body is shared"
    assert own(IMAGES).abs().max() == 0, "a new classifier starts at zero"
    own.reset_classifier(0, "")
    assert own(IMAGES).shape == (2, 17, 16)
    assert isinstance(own.get_classifier(), nn.Identity)
    own.set_input_size((64, 32))
    assert own(torch.randn(1, 3, 64, 32)).shape == (1, 33, 16)
    own.set_input_size(64, patch_size=16)
    assert own.patch_embed.grid_size == (4, 4)
    own.set_grad_checkpointing()
    kept = own(torch.randn(1, 3, 64, 64)).sum()
    kept.backward()
    assert own.model.blocks[0].mlp[0].norm.weight.grad is not None
    with pytest.raises(OptionError, match="global_pool must be token, avg, or ''"):
        own.reset_classifier(3, "max")
    with pytest.raises(OptionError, match="block 5 of 2: choose from 0 to 1"):
        own.forward_intermediates(torch.randn(1, 3, 64, 64), [5])


def test_a_resnet_gives_maps() -> None:
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create("BiT-R(1-1)x1", 3, 32, generator=generator).eval()
    own = vitlab.adapters.timm(model)
    final, maps = own.forward_intermediates(IMAGES, norm=True)
    assert [each.shape[1:] for each in maps] == [(256, 8, 8), (512, 4, 4)]
    assert [each["num_chs"] for each in own.feature_info] == [256, 512]
    assert [each["reduction"] for each in own.feature_info] == [4, 8]
    torch.testing.assert_close(final, own.forward_features(IMAGES))
    torch.testing.assert_close(maps[-1], final)
    torch.testing.assert_close(own(IMAGES), model(IMAGES))
    torch.testing.assert_close(own.forward_head(final, pre_logits=True), model.features(IMAGES))
    own.reset_classifier(0, "")
    assert own(IMAGES).shape == (2, 512, 4, 4)
    with pytest.raises(OptionError, match="averages its map"):
        own.reset_classifier(2, "map")


class Pairs(torch.utils.data.Dataset[dict[str, Any]]):
    """Random images, each class equally often, as transformers' collator takes them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 32, 32, generator=generator), "labels": index % 3}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_trainer_of_transformers_trains_saves_and_goes_on(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(2)
    model = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=16)/8",
        3,
        32,
        generator=generator,
        positions="rope",  # whose tables are not stored
        labels=("ant", "bee", "cat"),
    )
    before = model.head.classify.weight.clone()
    own = vitlab.adapters.transformers(model)
    assert own.config.id2label == {0: "ant", 1: "bee", 2: "cat"}

    def train(steps: int, **how: Any) -> None:
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=2, per_device_train_batch_size=4,
            report_to=[], use_cpu=True, disable_tqdm=True, activation_checkpointing=True,
            dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        transformers.Trainer(own, arguments, train_dataset=Pairs()).train(**how)

    train(2)
    train(4, resume_from_checkpoint=True)
    assert not torch.equal(before, model.head.classify.weight), "the weights are shared"
    model.eval()
    folder = tmp_path / "checkpoint-4"
    back = vitlab.load(folder)
    assert back.config == model.config
    again = type(own).from_pretrained(folder).eval()
    saved = vitlab.load(vitlab.save(own, tmp_path / "saved"))
    autos = (transformers.AutoModel, transformers.AutoModelForImageClassification)
    found = [each.from_pretrained(folder).eval() for each in autos]
    assert {type(each) for each in found} == {type(own)}
    for other in (back(IMAGES), saved(IMAGES), *(e(IMAGES).logits for e in (again, *found))):
        assert torch.equal(other, model(IMAGES))


def test_outputs_in_the_form_of_transformers() -> None:
    pytest.importorskip("transformers")
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=16)/8", 3, 32).eval()
    own = vitlab.adapters.transformers(model)
    labels = torch.tensor([0, 2])
    out = own(IMAGES, labels=labels, output_hidden_states=True, output_attentions=True)
    expected = nn.functional.cross_entropy(model(IMAGES), labels)
    torch.testing.assert_close(out.loss, expected)
    assert [each.shape for each in out.hidden_states] == [(2, 17, 16)] * 3
    assert [each.shape for each in out.attentions] == [(2, 2, 17, 17)] * 2
    loss, logits = own(IMAGES, labels=labels, return_dict=False)
    assert torch.equal(logits, out.logits)
    assert loss == out.loss


IMPORTED = """
import logging, os, random, signal, sys, warnings
import torch
import vitlab

def state():
    signals = [signal.getsignal(each) for each in signal.valid_signals()]
    flags = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()]
    flags += [torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()]
    drawn = [torch.get_rng_state().tolist(), random.getstate()]
    loggers = [(each.level, list(each.handlers)) for each in map(logging.getLogger, ("", "torch"))]
    return signals, flags, drawn, loggers, list(warnings.filters), dict(os.environ), sys.path[:]

before = state()
import vitlab.adapters
vitlab.adapters.timm(vitlab.load(sys.argv[1]))
assert not {"timm", "transformers"} & sys.modules.keys()
assert state() == before
"""


def test_importing_the_adapters_changes_nothing(tmp_path: Path) -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 32)
    words = [sys.executable, "-c", IMPORTED, str(vitlab.save(model, tmp_path / "m"))]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_without_transformers_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 32)
    with pytest.raises(PackageError, match="pip install transformers"):
        vitlab.adapters.transformers(model)
