"""Google's `.npz` files: both numberings, hybrids, pools, scans, BiT; the arithmetic of Flax.

No Flax here: `flax_vit` below is the official model written down in NumPy from its description, in
float64, with its own GELU, epsilon, padding and attention, on the arrays of the file itself.
"""

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from vitlab.weights.assembly import empty
from vitlab.weights.formats import google
from vitlab.weights.formats.names import entries

Array = NDArray[Any]
RNG = np.random.default_rng

# Names of a block's parts in the older files and in the newer ones, and of positions.
OLD = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
NEW = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PLACE = "Transformer/posembed_input/pos_embedding"


def norm(x: Array, p: dict[str, Array], name: str) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-6) * p[f"{name}/scale"] + p[f"{name}/bias"]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def dense(x: Array, p: dict[str, Array], name: str) -> Array:
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def attention(q: Array, kv: Array, p: dict[str, Array], name: str) -> Array:
    def heads(x: Array, part: str) -> Array:
        kernel = p[f"{name}/{part}/kernel"]
        return np.einsum("bnd,dhk->bhnk", x, kernel) + p[f"{name}/{part}/bias"][:, None]

    query, key, value = heads(q, "query"), heads(kv, "key"), heads(kv, "value")
    logits = np.einsum("bhqk,bhnk->bhqn", query / math.sqrt(query.shape[-1]), key)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhqn,bhnk->bqhk", weights, value)
    return np.einsum("bqhk,hkd->bqd", mixed, p[f"{name}/out/kernel"]) + p[f"{name}/out/bias"]


def mlp(x: Array, p: dict[str, Array], name: str) -> Array:
    return dense(gelu(dense(x, p, f"{name}/Dense_0")), p, f"{name}/Dense_1")


def same_pad(x: Array, kernel: int, stride: int, value: float = 0.0) -> Array:
    pads = [(0, 0)]
    for size in x.shape[1:3]:
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=value)


def windows(x: Array, kernel: int, stride: int) -> Array:
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return view[:, ::stride, ::stride]  # (B, rows, columns, C, kernel, kernel)


def conv(x: Array, kernel: Array, stride: int) -> Array:
    """Weight-standardized, padded as XLA's SAME."""
    mean, std = kernel.mean((0, 1, 2)), kernel.std((0, 1, 2))
    kernel = (kernel - mean) / (std + 1e-5)
    size = kernel.shape[0]
    return np.einsum("brsckl,klco->brso", windows(same_pad(x, size, stride), size, stride), kernel)


def group_norm(x: Array, p: dict[str, Array], name: str) -> Array:
    b, r, s, c = x.shape
    groups = x.reshape(b, r * s, 32, c // 32)
    mean = groups.mean((1, 3), keepdims=True)
    groups = (groups - mean) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-6)
    return groups.reshape(x.shape) * p[f"{name}/scale"].ravel() + p[f"{name}/bias"].ravel()


def resnet(x: Array, p: dict[str, Array], stages: tuple[int, ...]) -> Array:
    x = np.maximum(group_norm(conv(x, p["conv_root/kernel"], 2), p, "gn_root"), 0)
    x = windows(same_pad(x, 3, 2, -np.inf), 3, 2).max((-2, -1))
    for stage, units in enumerate(stages, start=1):
        for unit in range(1, units + 1):
            name = f"block{stage}/unit{unit}"
            stride = 2 if stage > 1 and unit == 1 else 1
            y = np.maximum(group_norm(conv(x, p[f"{name}/conv1/kernel"], 1), p, f"{name}/gn1"), 0)
            y = conv(y, p[f"{name}/conv2/kernel"], stride)
            y = np.maximum(group_norm(y, p, f"{name}/gn2"), 0)
            y = group_norm(conv(y, p[f"{name}/conv3/kernel"], 1), p, f"{name}/gn3")
            if unit == 1:
                x = group_norm(conv(x, p[f"{name}/conv_proj/kernel"], stride), p, f"{name}/gn_proj")
            x = np.maximum(x + y, 0)
    return x


def flax_vit(images: Array, p: dict[str, Array], stages: tuple[int, ...] | None) -> Array:
    """Features or class scores of images (B, rows, columns, 3) by the arrays of a file."""
    x = images if stages is None else resnet(images, p, stages)
    kernel = p["embedding/kernel"]
    patches = windows(x, kernel.shape[0], kernel.shape[0])
    x = np.einsum("brsckl,klcd->brsd", patches, kernel) + p["embedding/bias"]
    x = x.reshape(len(x), -1, x.shape[-1])
    if "cls" in p:
        x = np.concatenate([np.broadcast_to(p["cls"], (len(x), 1, x.shape[-1])), x], 1)
    x = x + p["Transformer/posembed_input/pos_embedding"]
    number = 0
    while f"Transformer/encoderblock_{number}/LayerNorm_0/scale" in p:
        names = [f"Transformer/encoderblock_{number}/{part}" for part in OLD]
        y = norm(x, p, names[0])
        x = x + attention(y, y, p, names[1])
        x = x + mlp(norm(x, p, names[2]), p, names[3])
        number += 1
    x = norm(x, p, "Transformer/encoder_norm")
    if "MAPHead_0/probe" in p:
        probe = np.broadcast_to(p["MAPHead_0/probe"], (len(x), 1, x.shape[-1]))
        y = attention(probe, x, p, "MAPHead_0/MultiHeadDotProductAttention_0")
        y = y + mlp(norm(y, p, "MAPHead_0/LayerNorm_0"), p, "MAPHead_0/MlpBlock_0")
        x = y[:, 0]
    else:
        x = x[:, 0] if "cls" in p else x.mean(1)
    if "pre_logits/kernel" in p:
        x = np.tanh(dense(x, p, "pre_logits"))
    return dense(x, p, "head") if "head/kernel" in p else x


def arrays(config: Any) -> dict[str, Array]:
    """Random arrays for a configuration, by the shapes that the table asks for."""
    rng, expected, made = RNG(3), empty(config), {}
    for entry in entries(config, google.VIT_NAMES, "a"):
        shapes = [t.shape for t in entry.write([expected[name] for name in entry.ours])]
        for name, shape in zip(entry.theirs, shapes, strict=True):
            spread = 1.0 if "conv" in name and "kernel" in name else 0.1
            array = spread * rng.standard_normal(tuple(shape))
            made[name] = array + (name.endswith(("scale", "gamma")) and 1.0)
    return made


def stored(values: dict[str, Array], file: Path, dtype: type = np.float32) -> Path:
    np.savez(file, **{name: value.astype(dtype) for name, value in values.items()})
    return file


def config_of(name: str, classes: int = 5, size: Any = 32, **choices: Any) -> Any:
    return vitlab.models.config.config_of(name, classes=classes, image_size=size, **choices)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "token": ("ViT-Ti2/16", {}),
    "gap": ("ViT-Ti2/16", {"pool": "mean"}),
    "pre-logits": ("ViT-Ti2/8", {"pre_logits": 24}),
    "no head": ("ViT-Ti2/8", {"classes": 0}),
    "map": ("ViT-Ti2/8", {"pool": "attention"}),
    "R+Ti/16": ("R+ViT-Ti2/32", {}),
    "R26": ("R(1-2)+ViT-Ti2/8", {}),
    "head width 80": ("ViT(width=80,depth=2,heads=1,mlp=96)/16", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_the_official_arithmetic(case: str, tmp_path: Path) -> None:
    name, choices = CASES[case]
    size = 64 if "R" in name else 32
    config = config_of(name, **{"size": size, "gelu": "tanh", **choices})
    values = {name: v.astype(np.float32).astype(float) for name, v in arrays(config).items()}
    model = vitlab.load(stored(values, tmp_path / "m.npz"))
    assert model.config.name == config.name
    images = RNG(4).standard_normal((2, size, size, 3))
    stages = config.stages if config.stem == "resnet" else None
    want = torch.from_numpy(flax_vit(images, values, stages))
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.inference_mode():
        torch.testing.assert_close(model(tensor.float()).double(), want, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.double()(tensor), want, rtol=0, atol=1e-9)


def test_every_dialect_is_the_same_model(tmp_path: Path) -> None:
    """Newer numbering, prefixes, optimizer state, scanned blocks, bfloat16, (1, 1, 1, C) norms."""
    config = config_of("ViT-Ti2/16", gelu="tanh")
    values = {name: v.astype(np.float32) for name, v in arrays(config).items()}
    plain = vitlab.load(stored(values, tmp_path / "plain.npz"))
    newer = {}
    for name, value in values.items():
        for old, new in zip(OLD, NEW, strict=True):
            name = name.replace(f"/{old}/", f"/{new}\0/")
        newer[name.replace("\0", "")] = value
    place = PLACE
    scanned = {n: v for n, v in newer.items() if "encoderblock" not in n}
    for name in (n for n in newer if "encoderblock_0/" in n):
        both = [newer[name.replace("_0/", f"_{i}/", 1)] for i in (0, 1)]
        scanned[name.replace("encoderblock_0", "encoderblock")] = np.stack(both)
    table = values[place]
    patches = {n: v for n, v in newer.items() if n != place} | {"pos_embedding": table[:, 1:]}
    patches["cls"] = values["cls"] + table[:, :1]
    optimizer = {f"opt/target/{n}": v for n, v in values.items()} | {"opt/state/step": np.int64(3)}
    dialects = {
        "newer": newer,
        "scanned": {f"params/{n}": v for n, v in scanned.items()},
        "big_vision": {f"params/img/{n}": v for n, v in patches.items()}
        | {"params/t": np.ones(1, np.float32), "params/txt/head/bias": np.ones(3, np.float32)},
        "optimizer": optimizer,
    }
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        for name, dialect in dialects.items():
            np.savez(tmp_path / f"{name}.npz", **dialect)
            model = vitlab.load(tmp_path / f"{name}.npz")
            torch.testing.assert_close(model(images), plain(images), rtol=0, atol=1e-6)
    void = {
        n: torch.from_numpy(v).bfloat16().view(torch.int16).numpy().view("V2")
        for n, v in values.items()
    }
    np.savez(tmp_path / "void.npz", **void)
    model = vitlab.load(tmp_path / "void.npz")
    want = torch.from_numpy(values["head/bias"]).bfloat16().float()
    assert torch.equal(model.head.classify.bias, want)


def test_fixed_positions_are_computed(tmp_path: Path) -> None:
    """big_vision's sincos2d models store none; values by its formula, one place checked by hand."""
    config = config_of("ViT-Ti2/16", pool="mean", size=48, gelu="tanh")
    values = arrays(config)
    del values[PLACE]
    model = vitlab.load(stored(values, tmp_path / "m.npz"), image_size=48)
    table = model.positions[0].table[0]
    row, column, quarter = 2, 1, 192 // 4
    omega = 1 / 10_000 ** (np.arange(quarter) / (quarter - 1))
    want = np.concatenate([f(n * omega) for n in (column, row) for f in (np.sin, np.cos)])
    np.testing.assert_allclose(table[3 * row + column].detach().numpy(), want, atol=1e-6)


def test_hybrids_of_the_release_by_shape(tmp_path: Path) -> None:
    """The whole R50+ViT-B/16 by its shapes: stages, patch and parameters as printed."""
    config = config_of("R50+ViT-B/16", 1000, 224, gelu="tanh")
    shapes = {}
    expected = empty(config)
    for entry in entries(config, google.VIT_NAMES, "a"):
        made = entry.write([expected[name] for name in entry.ours])
        shapes |= {n: tuple(t.shape) for n, t in zip(entry.theirs, made, strict=True)}
    assert shapes["conv_root/kernel"] == (7, 7, 3, 64)
    assert shapes["block3/unit9/conv2/kernel"] == (3, 3, 256, 256)
    assert shapes["embedding/kernel"] == (1, 1, 1024, 768)
    assert sum(math.prod(shape) for shape in shapes.values()) == 98_659_112


@pytest.mark.parametrize("numbered", [False, True])
def test_bit_files(numbered: bool, tmp_path: Path) -> None:
    """Against big_transfer's arithmetic as our ResNet was tested for it: names are what is new."""
    own = vitlab.create("BiT-R(1-2)x1", 7, 64)
    table = entries(own.config, google.BIT_NAMES, "a")
    state, values = own.state_dict(), {}
    for entry in table:
        made = entry.write([state[name] for name in entry.ours])
        for name, tensor in zip(entry.theirs, made, strict=True):
            name = (
                name.replace("standardized_conv2d/", "standardized_conv2d_3/") if numbered else name
            )
            values[f"resnet/{name}"] = tensor.numpy()
    assert values["resnet/head/conv2d/kernel"].shape == (1, 1, 512, 7)
    np.savez(tmp_path / "BiT.npz", **values)
    model = vitlab.load(tmp_path / "BiT.npz", image_size=64)
    assert model.config.name == "BiT-R(1-2)x1"
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(model(images), own.eval()(images))


def test_another_head_and_size(tmp_path: Path) -> None:
    """The whole pre-trained head goes, positions are zoomed as scipy does (test_save_load.py)."""
    values = arrays(config_of("ViT-Ti2/16", pre_logits=24, gelu="tanh"))
    model = vitlab.load(stored(values, tmp_path / "m.npz"), classes=3, image_size=48)
    assert (model.config.pre_logits, model.config.size) == (0, (48, 48))
    assert not model(torch.randn(1, 3, 48, 48)).any()


def test_the_size_asked_for_is_not_taken_for_the_files(tmp_path: Path) -> None:
    """Ten positions are nine patches and a class token, though 2x5 patches are asked for."""
    values = arrays(config_of("ViT-Ti1/16", size=48, gelu="tanh"))
    model = vitlab.load(stored(values, tmp_path / "m.npz"), image_size=(32, 80))
    same = vitlab.load(tmp_path / "m.npz")
    assert same.config.size == (48, 48)
    assert torch.equal(model.positions[0].table[:, :1], same.positions[0].table[:, :1])
    values = arrays(config_of("ViT-Ti1/16", size=(32, 80), gelu="tanh"))
    with pytest.raises(ValueError, match="11 positions do not form a square: give their size"):
        vitlab.load(stored(values, tmp_path / "wide.npz"))
    wide = vitlab.load(tmp_path / "wide.npz", image_size=(32, 80))
    assert wide.config.size == (32, 80)


def test_pickles_and_lies_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **{"embedding/kernel": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(
        ValueError, match="embedding/kernel is a pickled object, which is unsafe to load"
    ):
        vitlab.load(file)
    content = io.BytesIO()
    np.save(content, np.zeros((4, 4), np.float32))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("embedding/kernel.npy", content.getvalue()[:-8])
    with pytest.raises(
        ValueError, match="embedding/kernel does not have the size that its header states"
    ):
        vitlab.load(file)
