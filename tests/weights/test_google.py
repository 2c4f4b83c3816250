"""Google's `.npz` files, read and written: timm's own loader of them is the oracle."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from oracles import peers
from vitlab.weights.assembly import empty
from vitlab.weights.formats import google
from vitlab.weights.formats.names import entries

Array = NDArray[Any]
RNG = np.random.default_rng

# Names of a block's parts in the older files and in the newer ones, and of positions.
OLD = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
NEW = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PLACE = "Transformer/posembed_input/pos_embedding"


def arrays(config: Any) -> dict[str, Array]:
    """Random arrays for a configuration, by the shapes that the table asks for."""
    rng, expected, made = RNG(3), empty(config), {}
    for entry in entries(config, empty(config), google.VIT_NAMES, "a"):
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


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # and timm's words for them
    "token": ("ViT-Ti2/16", {}, {}),
    "gap": ("ViT-Ti2/16", {"pool": "mean"}, {"class_token": False, "global_pool": "avg",
                                             "fc_norm": False}),
    "no head": ("ViT-Ti2/8", {"classes": 0}, {"patch_size": 8, "num_classes": 0}),
    "map": ("ViT-Ti2/8", {"pool": "attention"}, {"patch_size": 8, "class_token": False,
                                                 "global_pool": "map"}),
}  # fmt: skip


def in_timm(file: Path, **arguments: Any) -> Any:
    peers.timm()
    from timm.models.vision_transformer import VisionTransformer

    usual = {"img_size": 32, "patch_size": 16, "embed_dim": 192, "depth": 2, "num_heads": 3,
             "num_classes": 5, "act_layer": "gelu_tanh"}  # fmt: skip
    other = VisionTransformer(**usual | arguments)
    other.load_pretrained(str(file))
    return other.eval()


@pytest.mark.parametrize("case", CASES)
def test_read_and_written_as_timm_reads_it(case: str, tmp_path: Path) -> None:
    name, choices, words = CASES[case]
    config = config_of(name, **{"gelu": "tanh", **choices})
    model = vitlab.load(stored(arrays(config), tmp_path / "m.npz"))
    assert model.config.name == config.name
    written = vitlab.save(model, tmp_path / "written", to="google") / "model.npz"
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        for file in (tmp_path / "m.npz", written):
            want = in_timm(file, **words)(images)
            torch.testing.assert_close(model(images), want, rtol=0, atol=1e-5)


def test_no_other_format_is_imported_for_such_a_file(tmp_path: Path) -> None:
    file = stored(arrays(config_of("ViT-Ti2/8", gelu="tanh")), tmp_path / "m.npz")
    words = (
        "import sys, vitlab; vitlab.load(sys.argv[1])\n"
        "others = {'transformers_format', 'timm_format', 'dalle', 'unsupported'}\n"
        "assert not others & {each.rpartition('.')[2] for each in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", words, file], check=True)


def test_pre_logits_are_a_layer_with_tanh(tmp_path: Path) -> None:
    values = arrays(config_of("ViT-Ti2/16", pre_logits=24, gelu="tanh"))
    model = vitlab.load(stored(values, tmp_path / "m.npz")).double()
    bare = {name: array for name, array in values.items() if not name.startswith(("pre", "head"))}
    features = vitlab.load(stored(bare, tmp_path / "bare.npz")).double()
    images = torch.randn(2, 3, 32, 32).double()
    with torch.inference_mode():
        want = features(images).numpy()
        for name, change in (("pre_logits", np.tanh), ("head", lambda x: x)):
            kernel, bias = (values[f"{name}/{part}"].astype(np.float32) for part in
                            ("kernel", "bias"))  # fmt: skip
            want = change(want @ kernel + bias)
        np.testing.assert_allclose(model(images).numpy(), want, rtol=0, atol=1e-9)


def test_hybrids_have_timms_names(tmp_path: Path) -> None:
    """Their ResNets differ by the epsilons of norms and kernels alone."""
    timm = peers.timm()
    values = arrays(config_of("R(2-2-2-2)+ViT-Ti2/32", size=64, gelu="tanh"))
    model = vitlab.load(stored(values, tmp_path / "m.npz"))
    words = {"img_size": 64, "embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 5}
    other = timm.create_model("vit_small_r26_s32_224", act_layer="gelu_tanh", **words)
    other.load_pretrained(str(tmp_path / "m.npz"))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        torch.testing.assert_close(model(images), other.eval()(images), rtol=0, atol=1e-2)
        assert model(images).std() > 0.1


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


@pytest.mark.parametrize("numbered", [False, True])
def test_bit_files(numbered: bool, tmp_path: Path) -> None:
    """Against big_transfer's arithmetic as our ResNet was tested for it: names are what is new."""
    own = vitlab.create("BiT-R(1-2)x1", 7, 64)
    table = entries(own.config, empty(own.config), google.BIT_NAMES, "a")
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
