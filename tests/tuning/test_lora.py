"""LoRA: as peft has it on timm's ViT, the same bits for a seed, and a plain model at the end."""

import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from oracles import peers
from vitlab.errors import OptionError, WeightsError
from vitlab.tuning.lora import dense_layers, inject, is_injected, merged

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/8"
BLOCK = ["attention.0.body.qkv", "attention.0.body.project"]
FFN = ["mlp.0.body.expand", "mlp.0.body.contract"]


def tiny(name: str = NAME, **choices: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    return vitlab.create(name, 3, 16, generator=generator, zero_head=False, **choices).eval()


def adapted(model: Any, seed: int = 0, targets: Any = "attention", **values: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    inject(model, generator, **{"rank": 4, "alpha": 8.0, "targets": targets} | values)
    return model


def matrices(model: nn.Module) -> dict[str, Tensor]:
    return {n: w for n, w in model.named_parameters() if ".lora_" in n}


def randomized(model: nn.Module, seed: int = 5) -> nn.Module:
    """Random matrices, B too, so that the product is not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in matrices(model).values():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def images(count: int = 4, size: int = 16) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(9))


def learn(model: nn.Module, x: Tensor, steps: int) -> None:
    """A few steps of AdamW on what is free."""
    free = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(free, lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("targets", "name"),
    [("attention", "vit_tiny_patch16_224"), ("ffn", "vit_small_patch16_18x2_224"),
     ("all", "vit_base_patch16_siglip_224")],
)  # fmt: skip
def test_it_is_pefts_on_timms_model(targets: str, name: str, tmp_path: Path) -> None:
    """Before and after a few steps, and merged."""
    small = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 3}
    other = peers.timm().create_model(name, **small).eval()
    peft = pytest.importorskip("peft")
    save_file(other.state_dict(), tmp_path / "timm.safetensors")
    model = vitlab.load(tmp_path / "timm.safetensors", name=name, heads=3)
    before = model.state_dict()
    adapted(model, targets=targets, rank=3, alpha=12.0)

    their = {"attention": r"(qkv|q|kv|proj)", "ffn": "(fc1|fc2)", "all": "(qkv|q|kv|proj|fc1|fc2)"}
    where = rf"(blocks|attn_pool)\.(.*\.)?{their[targets]}"
    config = peft.LoraConfig(r=3, lora_alpha=12.0, target_modules=where)
    peer = peft.get_peft_model(other, config).eval()
    assert len(matrices(model)) == len(matrices(peer)) > 0
    randomized(model)
    for mine, theirs in zip(matrices(model).values(), matrices(peer).values(), strict=True):
        theirs.data.copy_(mine.data)

    x = images(size=32)
    torch.testing.assert_close(model(x), peer(x), rtol=0, atol=1e-5)
    learn(model, x, 3)
    learn(peer, x, 3)
    after = model(x)
    torch.testing.assert_close(after, peer(x), rtol=0, atol=1e-4)
    for mine, theirs in zip(matrices(model).values(), matrices(peer).values(), strict=True):
        theirs.data.copy_(mine.data)

    plain = merged(model)
    torch.testing.assert_close(plain(x), after, rtol=0, atol=1e-5)
    save_file(peer.merge_and_unload().state_dict(), tmp_path / "merged.safetensors")
    want = vitlab.load(tmp_path / "merged.safetensors", name=name, heads=3).state_dict()
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, want[key]), key
        changed = key.removesuffix(".weight") in dense_layers(plain, targets)  # type: ignore[arg-type]
        assert torch.equal(tensor, before.get(key, want[key])) is not changed


def test_it_starts_where_the_model_was_and_trains_its_matrices_alone() -> None:
    plain, noise = tiny(), torch.get_rng_state()
    model = adapted(copy.deepcopy(plain))
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.equal(model(images()), plain(images()))
    assert {n for n, w in model.named_parameters() if w.requires_grad} == set(matrices(model))
    assert not any(module.training for module in model.modules())
    kept = {n.replace(".base_layer", ""): t for n, t in model.state_dict().items()}
    assert all(torch.equal(kept[name], tensor) for name, tensor in plain.state_dict().items())
    assert adapted(tiny().train()).blocks[0].attention[0].body.qkv.training


def test_a_is_drawn_from_the_generator_and_b_is_zero() -> None:
    model = adapted(tiny(), seed=7)
    generator = torch.Generator().manual_seed(7)
    for name, weight in matrices(model).items():
        want = torch.zeros(weight.shape)
        if ".lora_A." in name:
            bound = 1 / math.sqrt(weight.shape[1])  # Kaiming with slope sqrt(5)
            want.uniform_(-bound, bound, generator=generator)
        torch.testing.assert_close(weight.data, want, rtol=1e-6, atol=0)
    again, other = matrices(adapted(tiny(), seed=7)), matrices(adapted(tiny(), seed=8))
    assert all(torch.equal(weight, again[name]) for name, weight in matrices(model).items())
    assert not all(torch.equal(weight, other[name]) for name, weight in matrices(model).items())


def test_words_for_layers() -> None:
    blocks = ["blocks.0.", "blocks.1."]
    assert dense_layers(tiny(), "attention") == [b + n for b in blocks for n in BLOCK]
    assert dense_layers(tiny(), "ffn") == [b + n for b in blocks for n in FFN]
    assert dense_layers(tiny(), "all") == [b + n for b in blocks for n in (*BLOCK, *FFN)]
    parallel = tiny("ViT(width=16,depth=1,heads=2,mlp=32,branches=2)/8", ffn="swiglu")
    assert [name.split(".", 2)[2] for name in dense_layers(parallel, "ffn")] == [
        *FFN, "mlp.1.body.expand", "mlp.1.body.contract",
    ]  # fmt: skip
    pooled = set(dense_layers(tiny(pool="attention"), "all")) - set(dense_layers(tiny(), "all"))
    assert pooled == {
        f"head.attend.{n}" for n in ("q", "kv", "project", "mlp.expand", "mlp.contract")
    }
    local = vitlab.create("ViT(width=32,depth=1,heads=2,mlp=32)/8", 3, 16, stem="local")
    assert dense_layers(local, "all") == ["blocks.0." + n for n in (*BLOCK, *FFN)]
    adapted(local, targets="all")  # whose stem has a block 0 of its own
    assert not any(name.startswith("stem.") for name in matrices(local))


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(
        OptionError,
        match=re.escape(
            "BiT-R26x1 has no dense layers for LoRA: use a Vision Transformer, or tune=all"
        ),
    ):
        adapted(vitlab.create("BiT-R26x1", 3, 32))


def test_merged_is_a_plain_model_of_its_own(tmp_path: Path) -> None:
    base = tiny()
    base.provenance, base.source = {"license": "mit"}, "somewhere"
    model = randomized(adapted(copy.deepcopy(base)))
    assert is_injected(model)
    plain = merged(model)
    assert not is_injected(plain)
    assert plain.state_dict().keys() == base.state_dict().keys()
    assert (plain.provenance, plain.source) == (base.provenance, base.source)
    assert all(weight.requires_grad for weight in plain.parameters())
    layers = {f"{name}.weight" for name in dense_layers(base, "attention")}
    assert set(vitlab.delta(plain, base).tensors) == layers
    loaded = vitlab.load(vitlab.save(plain, tmp_path / "plain"))
    torch.testing.assert_close(loaded(images()), model(images()), rtol=0, atol=1e-6)
    torch.testing.assert_close(vitlab.fuse(plain)(images()), model(images()), rtol=0, atol=1e-5)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())
    with pytest.raises(WeightsError):  # the injected model itself is refused, not saved in part
        vitlab.save(model, tmp_path / "injected")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    model = randomized(adapted(tiny().to(dtype)))
    assert {tensor.dtype for tensor in model.state_dict().values()} == {dtype}
    plain = merged(model)
    assert {tensor.dtype for tensor in plain.state_dict().values()} == {dtype}
    x, near = images().to(dtype), 0.1 if dtype is torch.bfloat16 else 1e-12
    torch.testing.assert_close(plain(x), model(x), rtol=0, atol=near)


def test_a_checkpoint_of_pefts_layers_goes_on_in_ours() -> None:
    """Runs of before have them: the same names, the same numbers."""
    peers.prepare_torchvision()
    peft = pytest.importorskip("peft")
    theirs, ours = tiny(), adapted(tiny())
    config = peft.LoraConfig(r=4, lora_alpha=8.0, target_modules=dense_layers(theirs, "attention"))
    randomized(peft.inject_adapter_in_model(config, theirs))
    assert list(matrices(ours)) == list(matrices(theirs))
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(images()), theirs(images()))
