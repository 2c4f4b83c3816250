"""Models out and back, bit for bit; the list of formats, and the pieces of their tables."""

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitlab
from made_models import equal
from vitlab.errors import DiskError, HubError, OptionError, UserError, WeightsError
from vitlab.models.config import config_of
from vitlab.weights.formats.dialects import TIMM
from vitlab.weights.formats.entries import StoredAs, way
from vitlab.weights.formats.google import VIT_NAMES
from vitlab.weights.formats.names import found
from vitlab.weights.identity import fingerprint
from vitlab.weights.load import load_check

NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/8"


def little(seed: int = 0, **choices: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return vitlab.create(NAME, 3, 16, generator=generator, **choices)


def test_a_round_trip_is_exact_in_place_of_what_was_there(tmp_path: Path) -> None:
    vitlab.save(little(), tmp_path / "m")
    second = little(1, labels=("a", "b", "ü"), pool="mean", mean=(0.1, 0.2, 0.3), crop=0.9)
    second.provenance = {"data": "here", "seed": 3}
    vitlab.save(second, tmp_path / "m")
    loaded = vitlab.load(tmp_path / "m")
    assert equal(loaded, second)
    assert (loaded.config, loaded.provenance) == (second.config, second.provenance)
    assert not loaded.training
    assert all(weight.requires_grad for weight in loaded.parameters())
    files = sorted(each.name for each in (tmp_path / "m").iterdir())
    assert files == ["config.json", "model.safetensors"]
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and contains m, thesis"):
        vitlab.save(second, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with pytest.raises(UserError, match="give the folder's name"):
        vitlab.save(second, ".")
    (tmp_path / "config.json").write_text("{}")  # of something else
    with pytest.raises(ValueError, match="exists and contains m, thesis"):
        vitlab.save(second, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_another_number_of_classes_starts_a_zero_head(tmp_path: Path) -> None:
    model = little(labels=("a", "b", "c"))
    model.provenance = {"data": "here", "multi_label": True, "metrics": {"map": 0.5}}
    vitlab.save(model, tmp_path / "m")
    loaded = vitlab.load(tmp_path / "m", classes=7)
    assert loaded.provenance == {"data": "here"}  # nothing of the old classifier's
    images = torch.randn(2, 3, 16, 16)
    assert loaded(images).shape == (2, 7)
    assert not loaded(images).any()
    assert loaded.config.labels == ()
    torch.testing.assert_close(loaded.features(images), model.eval().features(images))


def damage(folder: Path, how: str) -> str:
    """Spoil a saved model; returns what the message must name."""
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    content = json.loads(config.read_text())
    match how:
        case "missing":
            del tensors["norm.weight"]
        case "extra":
            tensors["extra.weight"] = torch.zeros(1)
        case "shape":
            tensors["norm.weight"] = torch.zeros(7)
        case "nan":
            tensors["norm.weight"][3] = torch.nan
        case "kind":
            tensors["norm.weight"] = torch.zeros(16, dtype=torch.int64)
        case "truncated":
            file.write_bytes(file.read_bytes()[:-9])
        case "header":
            file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
        case "pickle":
            torch.save(tensors, file)
        case "gone":
            file.unlink()
    if how in ("truncated", "header", "pickle", "gone"):
        return "model.safetensors"
    save_file(tensors, file)
    told = {
        "json": ("config.json", "{"), "list": ("config.json", "[]"),
        "format": ("vitlab-9", content | {"format": "vitlab-9"}),
        "value": ("heads=7 does not divide width=16",
                  content | {"model": content["model"] | {"heads": 7}}),
        "field": ("color", content | {"model": content["model"] | {"color": 7}}),
    }  # fmt: skip
    if how in told:
        words, new = told[how]
        config.write_text(new if isinstance(new, str) else json.dumps(new))
        return words
    return "extra.weight" if how == "extra" else "norm.weight"


HOW = "missing extra shape nan kind truncated header pickle gone json format value field list"


@pytest.mark.parametrize("how", HOW.split())
def test_damage_is_one_line_that_names_it(tmp_path: Path, how: str) -> None:
    folder = vitlab.save(little(), tmp_path / "m")
    names = damage(folder, how)
    with pytest.raises(ValueError) as caught:
        vitlab.load(folder)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loaded_model_does_not_depend_on_the_file(tmp_path: Path) -> None:
    """Memory-mapped tensors would change with the file, or crash when it is cut."""
    folder = vitlab.save(little(), tmp_path / "m")
    model = vitlab.load(folder)
    before = model.stem.layers[0].weight.clone()
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.stem.layers[0].weight, before)


def test_an_option_of_another_library_is_answered_without_the_hub() -> None:
    with pytest.raises(OptionError, match="'num_labels': did you mean classes"):
        vitlab.load("google/vit-base-patch16-224", num_labels=3)


def test_load_check_of_a_delta(tmp_path: Path) -> None:
    base = little()
    model = little()
    with torch.no_grad():
        model.head.classify.bias += 1
    found = load_check(vitlab.delta(model, base).save(tmp_path / "d.safetensors"))
    assert (found.format, found.model) == (f"delta from {NAME}", NAME)
    assert [each.ours for each in found.tensors] == [("head.classify.bias",)]
    assert json.dumps(found.as_dict())
    loaded = vitlab.load(tmp_path / "d.safetensors", base=base, mean=0.25)
    assert loaded.config.mean == (0.25, 0.25, 0.25)
    with pytest.raises(OptionError, match="unknown model option 'meen': did you mean mean"):
        vitlab.load(tmp_path / "d.safetensors", base=base, meen=0.25)
    change = vitlab.delta(base, base)
    change.tensors["more"] = torch.zeros(1)
    with pytest.raises(WeightsError, match="the delta's tensor 'more' is not part of ViT"):
        change.apply(base)


# Computed by the code before the first release: deltas name their base by these numbers.
FINGERPRINTS: dict[tuple[str, tuple[tuple[str, float], ...]], str] = {
    ("ViT(width=8,depth=1,heads=2,mlp=16)/8", (("mean", 0.25), ("layer_scale", 0.5))): (
        "1af527af8a033d24b41d78c81e08367e312426d2e23b9cbbacdb8ded4db5ec1f"
    ),
    ("BiT-R(1-1)x1", ()): "0506f09e972f836f4092e03ff0c8fb0d7033ba8a0c0cab398678050817720874",
}


@pytest.mark.parametrize(("name", "choices"), FINGERPRINTS)
def test_fingerprints_stay(name: str, choices: tuple[tuple[str, float], ...]) -> None:
    model = vitlab.create(name, 2, 16, **dict(choices))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 7)
    assert fingerprint(model) == FINGERPRINTS[name, choices]


def test_errors_are_typed(tmp_path: Path) -> None:
    """A caller can tell a typo from a damaged file, a missing repository and a full disk."""
    folder = vitlab.save(little(), tmp_path / "m")
    cases: list[tuple[type[UserError], Any]] = [
        (WeightsError, lambda: vitlab.load(tmp_path / "nothing")),
        (OptionError, lambda: vitlab.load(folder, heds=2)),
        (WeightsError, lambda: vitlab.load(folder, heads=3)),
        (HubError, lambda: vitlab.load("hf://nobody/nothing")),
        (HubError, lambda: vitlab.push(little(), "no-user")),
        (WeightsError, lambda: vitlab.push(vitlab.fuse(little()), "me/pets")),
        (WeightsError, lambda: vitlab.delta(little(), little()).apply(little(layer_scale=1.0))),
        (DiskError, lambda: vitlab.save(little(), folder / "config.json" / "inside")),
    ]
    for kind, call in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert type(caught.value) is kind, caught.value
        assert "\n" not in str(caught.value)


def test_the_advice_of_messages_works(tmp_path: Path) -> None:
    pooled = little(pool="attention")
    with pytest.raises(WeightsError, match="save with classes=0"):
        vitlab.save(pooled, tmp_path / "m", to="transformers")
    headless = vitlab.load(vitlab.save(pooled, tmp_path / "own"), classes=0)
    assert vitlab.load(vitlab.save(headless, tmp_path / "m", to="transformers")).config.classes == 0
    tensors = load_file(vitlab.save(little(), tmp_path / "t", to="timm") / "model.safetensors")
    del tensors["pos_embed"]
    save_file(tensors, tmp_path / "none.safetensors")
    with pytest.raises(WeightsError, match="give --positions none, or --name"):
        vitlab.load(tmp_path / "none.safetensors", image_size=16, heads=2)
    loaded = vitlab.load(tmp_path / "none.safetensors", image_size=16, heads=2, positions="none")
    assert loaded.config.positions == "none"
    tensors = load_file(tmp_path / "own" / "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"][None]  # Google's norms have more ones
    save_file(tensors, tmp_path / "own" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"norm.weight has shape \(1, 16\), not \(16,\)"):
        vitlab.load(tmp_path / "own")


def test_an_array_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("a.npy", content.getvalue())
    with pytest.raises(WeightsError, match="tensor a occurs twice"):
        vitlab.load(tmp_path / "m.npz")


def test_more_tensors_than_any_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {str(number): torch.zeros(1) for number in range(5)}
    save_file(tensors, tmp_path / "m.safetensors")
    torch.save(tensors, tmp_path / "m.pth")
    monkeypatch.setattr("vitlab.weights.containers.open.MOST", 4)
    for name in ("m.safetensors", "m.pth"):
        with pytest.raises(WeightsError, match="has 5 tensors; the limit is 4"):
            vitlab.load(tmp_path / name)


CONFIG = config_of("ViT(width=8,depth=1,heads=2,mlp=32)/8", image_size=16, classes=3)


def google(key: str) -> StoredAs:
    """The first way in which Google stores a part."""
    return VIT_NAMES[key][0]


# How something is stored, and the shapes of our tensors.
PIECES: dict[str, tuple[StoredAs, list[tuple[int, ...]]]] = {
    "a token": (way("flat_token(b)"), [(1, 1, 6)]),
    "a table": (way("flat_table(b)"), [(1, 5, 6)]),
    "a grid": (way("gridded(b)"), [(1, 4, 6)]),
    "patches": (way("patches(b)"), [(4, 3, 8, 8)]),
    "stacked": (way("q k v"), [(6, 4)]),
    "joined": (way("joined(b)"), [(4, 4), (8, 4)]),
    "halves of a kernel": (way("halves(b c)"), [(3, 8)]),
    "dense": (google("expand.weight"), [(3, 5)]),
    "convolution": (google("patch.weight"), [(4, 3, 2, 2)]),
    "queries": (google("qkv.weight"), [(24, 8)]),
    "biases of queries": (google("qkv.bias"), [(24,)]),
    "output": (google("project.weight"), [(5, 8)]),
}


def some(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_written_is_read_back(piece: str) -> None:
    stored, shapes = PIECES[piece]
    ours = some(*shapes)
    theirs = stored.write(CONFIG, ours)
    assert len(theirs) == len(stored.names)
    for got, want in zip(stored.read(CONFIG, theirs), ours, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for meta, real in zip(stored.write(CONFIG, [t.to("meta") for t in ours]), theirs, strict=True):
        assert meta.shape == real.shape


def test_a_kernel_of_flax_is_the_transposed() -> None:
    """Dense: x @ kernel; convolution: (rows, columns, inputs, outputs), as in Flax's own code."""
    kernel, x = some((4, 6), (2, 4))
    dense = google("expand.weight")
    torch.testing.assert_close(x @ dense.read(CONFIG, [kernel])[0].T, x @ kernel)
    (conv,) = some((3, 2, 5, 7))
    weight = google("patch.weight").read(CONFIG, [conv])[0]
    assert weight.shape == (7, 5, 3, 2)
    assert weight[6, 4, 2, 1] == conv[2, 1, 4, 6]


def test_a_bias_of_keys_is_refused_where_it_matters_and_none_is_zero() -> None:
    stored = way("keyless(q v)")
    q, v = some((4,), (4,))
    (whole,) = stored.read(CONFIG, [q, v])
    assert torch.equal(whole, torch.cat([q, torch.zeros(4), v]))
    for got, want in zip(stored.write(CONFIG, [whole]), (q, v), strict=True):
        assert torch.equal(got, want)
    both = torch.cat([q, q, v])
    assert torch.equal(stored.write(CONFIG, [both])[1], v)  # the softmax takes it out again
    normed = config_of("ViT-Ti1/16", qk_norm=True)
    with pytest.raises(WeightsError, match="cannot represent a bias of keys"):
        stored.write(normed, [both])
    shapes = [each.shape for each in stored.write(normed, [torch.empty(12, device="meta")])]
    assert shapes == [(4,), (4,)]


def test_a_class_token_without_a_position() -> None:
    stored = way("without_first_row(pos)")
    (table,) = some((1, 4, 3))
    (ours,) = stored.read(CONFIG, [table])
    assert not ours[:, 0].any()
    assert torch.equal(ours[:, 1:], table)
    assert torch.equal(stored.write(CONFIG, [ours])[0], table)
    with pytest.raises(WeightsError, match="cannot represent a position of the class token"):
        stored.write(CONFIG, [torch.ones(1, 5, 3)])


def test_the_longest_way_that_is_there_is_how_a_part_is_stored() -> None:
    """A file with biases of queries, keys and values has those of queries and values, too."""
    first, layers = "blocks.0.attn.", ("q_proj", "k_proj", "v_proj")
    shapes = {f"{first}{layer}.{part}": (4, 4)[: 2 - (part == "bias")]
              for layer in layers for part in ("weight", "bias")}  # fmt: skip
    whole = found(shapes, TIMM)
    assert (whole.shape("qkv.weight"), whole.shape("qkv.bias")) == ((12, 4), (12,))
    del shapes[f"{first}k_proj.bias"]
    keyless = found(shapes, TIMM)
    assert len(keyless.theirs["qkv.bias"]) == 2
    assert keyless.shape("qkv.bias") == (12,)
