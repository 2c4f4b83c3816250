"""Soups: the mean of weights against NumPy's, the greedy choice, what cannot be averaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import call, photo_folder
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.models.model import Model
from vitlab.weights.identity import fingerprint

NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/4"


def noisy(seed: int, name: str = NAME, size: int = 8, **choices: object) -> Model:
    """A model whose every weight is noise."""
    model = vitlab.create(name, image_size=size, **{"classes": 10, "channels": 1} | choices)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.state_dict().values():
            if weight.is_floating_point():
                weight.copy_(torch.rand(weight.shape, generator=generator) + seed)
    return model


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory, digits_run: Path) -> list[Path]:
    """A run on digits, the same with a little noise, and noise alone."""
    folder = tmp_path_factory.mktemp("three")
    near, wild = vitlab.load(digits_run), vitlab.load(digits_run)
    with torch.no_grad():
        for weight in near.parameters():
            weight += 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        for weight in wild.parameters():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return [digits_run, vitlab.save(wild, folder / "wild"), vitlab.save(near, folder / "near")]


def test_the_mean_is_numpys(tmp_path: Path) -> None:
    folders = [vitlab.save(noisy(seed), tmp_path / str(seed)) for seed in (1, 2, 4)]
    mixed = vitlab.soup(folders)
    tables = [vitlab.load(folder).state_dict() for folder in folders]
    for name, tensor in mixed.state_dict().items():
        mean = np.mean([table[name].double().numpy() for table in tables], axis=0)
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), mean.astype(np.float32))
    parts = mixed.provenance["soup"]["ingredients"]
    assert [part["source"] for part in parts] == [str(folder) for folder in folders]
    assert parts[1]["fingerprint"] == fingerprint(noisy(2))
    assert not mixed.training


def test_the_sum_is_rounded_once() -> None:
    """In float32, a small weight would be lost beside large ones that cancel."""
    models = [noisy(seed) for seed in (1, 2, 3)]
    values = [2.0**24, 1.0, -(2.0**24)]
    with torch.no_grad():
        for model, value in zip(models, values, strict=True):
            next(model.parameters()).fill_(value)
    assert next(vitlab.soup(models).parameters()).flatten()[0].item() == np.float32(1 / 3)


def test_types_and_counters_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name, choices = "ViT(width=16,depth=1,heads=2,mlp=32)/16", {"channels": 3, "size": 16}
    models = [noisy(n, name, stem="hmlp", stem_norm="batch", **choices) for n in (1, 2)]
    for number, model in enumerate(models):
        for name, buffer in model.named_buffers():
            if name.endswith("num_batches_tracked"):
                buffer.fill_(7 + 4 * number)
    mixed = vitlab.soup([model.bfloat16() for model in models])
    state = mixed.state_dict()
    counts = [value for name, value in state.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(count) == 7 and count.dtype == torch.int64 for count in counts)
    name = next(name for name in state if name.endswith("running_var"))
    both = [model.state_dict()[name].double() for model in models]
    assert torch.equal(state[name], (sum(both) / 2).bfloat16())
    assert "batch-norm statistics were averaged" in capsys.readouterr().err


def test_greedy_keeps_what_does_not_harm(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["soup", *map(str, three), "--out", str(tmp_path / "s"), "--greedy", "digits", "--json"]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    result = json.loads(out)
    parts = result["ingredients"]
    scores = [part["accuracy"] for part in parts]
    assert scores == sorted(scores, reverse=True)
    assert parts[-1]["source"] == str(three[1])
    assert parts[0]["kept"] is True
    assert parts[-1]["kept"] is False  # the wild one
    assert result["accuracy"] >= scores[0]
    again = vitlab.evaluate(vitlab.load(result["folder"]), "digits")
    assert again["accuracy"] == result["accuracy"]
    kept = [part["source"] for part in parts if part["kept"]]
    if len(kept) > 1:
        plain = vitlab.soup(kept)
        assert fingerprint(plain) == result["fingerprint"]
    assert vitlab.load(result["folder"]).provenance["soup"]["kind"] == "greedy"


def test_greedy_chooses_by_validation_images_where_there_are_any(tmp_path: Path) -> None:
    counts = {"train": 3, "val": 2, "test": 1}
    for split, count in counts.items():
        photo_folder(tmp_path / "data" / split, {"a": count, "b": count}, 8, 8)
    models = [noisy(seed, channels=3, classes=2, labels=("a", "b")) for seed in (1, 2)]
    mixed = vitlab.soup(models, str(tmp_path / "data"))
    assert mixed.provenance["soup"]["split"] == "validation"
    assert {part["accuracy"] for part in mixed.provenance["soup"]["ingredients"]} <= {0, 0.5, 1}
    mixed = vitlab.soup(models, str(tmp_path / "data"), split="test")
    assert mixed.provenance["soup"]["split"] == "test"


def test_a_uniform_soup_on_the_command_line(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "soup", *map(str, three[::2]), "--out", str(tmp_path / "s"))
    assert code == 0, err
    assert "uniform soup" in out
    about = vitlab.load(tmp_path / "s").provenance
    assert (about["data"], about["seed"]) == ("digits", 0)


def test_models_that_learned_from_other_images_are_remarked_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = noisy(1), noisy(2)
    one.provenance = {"data": "a", "fingerprint": "x", "held_out": 0.2, "recipe": "small"}
    two.provenance = {"data": "a", "fingerprint": "y", "held_out": 0.2, "recipe": "small"}
    mixed = vitlab.soup([one, two])
    assert set(mixed.provenance) == {"recipe", "soup"}
    assert "learned from different images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: noisy(2, "ViT(width=32,depth=1,heads=2,mlp=32)/4"), "has width=32, but a model"),
        (lambda: noisy(2, pool="mean"), "has pool=mean, but a model has token: a soup needs mod"),
        (
            lambda: vitlab.create("BiT-R50x1", 10, 32),
            "has model=ResNet, but a model has",
        ),
        (lambda: noisy(1), "is the same model as a model: name it once"),
        (lambda: noisy(2).bfloat16(), "differ in the tensor"),
    ],
)
def test_what_cannot_be_averaged_is_refused(other: object, words: str) -> None:
    with pytest.raises((WeightsError, OptionError)) as caught:
        vitlab.soup([noisy(1), other()])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_matters_in_training_alone_may_differ() -> None:
    vitlab.soup([noisy(1, drop_path=0.1, dropout=0.2), noisy(2)])


def test_bad_input(three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="a soup needs at least two models, not 1"):
        vitlab.soup(three[:1])
    with pytest.raises(DataError, match="no such file or folder: nowhere"):
        vitlab.soup(three[:2], "nowhere")
    code, _, err = call(capsys, "soup", str(three[0]), "nowhere", "--out", str(tmp_path / "s"))
    assert code == 2
    assert err.splitlines()[-1] == "vitlab soup: no such file or folder: nowhere"
    assert not (tmp_path / "s").exists()
