"""What a user says of weights whose file does not say it, in Python and on the command line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitlab
from conftest import call
from oracles import peers
from vitlab.errors import OptionError
from vitlab.options import options_of
from vitlab.weights.formats.origins import SILENT
from vitlab.weights.stated import KNOWN, Stated


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensors with timm's names, and nothing beside them: 6 heads and quick GELU."""
    other = peers.timm().create_model(
        "vit_tiny_patch16_224", depth=1, img_size=32, num_classes=10, num_heads=6
    )
    file = tmp_path_factory.mktemp("bare") / "model.safetensors"
    save_file({name: torch.randn_like(t) / 5 for name, t in other.state_dict().items()}, file)
    return file


GIVEN = ("--heads", "6", "--gelu", "quick", "--norm-eps", "1e-5", "--mean", "0.1", "--std", "0.2")
AS_PYTHON = {"heads": 6, "gelu": "quick", "norm_eps": 1e-5, "mean": 0.1, "std": 0.2}


def test_every_silent_field_is_an_option() -> None:
    names = set(options_of(Stated))
    assert set(SILENT) - set(KNOWN) <= names
    assert {"name", "part", "drop", "labels", "image_size"} <= names
    assert Stated().arguments() == {}


def test_load_check_settles_fields(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    code, out, _ = call(capsys, "load-check", str(bare), *GIVEN, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["config"]["heads"] == 6
    assert found["config"]["gelu"] == "quick"
    assert {found["origins"][name] for name in AS_PYTHON} == {"option"}
    code, out, err = call(capsys, "load-check", str(bare))
    assert code == 0
    assert "assumed: image_size 32, heads 3, gelu exact" in err
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.split()}
    assert (rows["heads"], rows["width"]) == ("assumed", "tensors")
    assert "qk_norm" not in rows  # off, as in most models


def test_commands_take_what_python_takes(
    capsys: pytest.CaptureFixture[str], bare: Path, tmp_path: Path
) -> None:
    assert call(capsys, "export", str(bare), "--to", "vitlab", "--out", str(tmp_path / "own"),
                *GIVEN)[0] == 0  # fmt: skip
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    own, python = vitlab.load(tmp_path / "own"), vitlab.load(bare, **AS_PYTHON)
    assert own.config == python.config
    assert torch.equal(own(images), python(images))
    assert not torch.allclose(own(images), vitlab.load(bare)(images))
    code, _, err = call(capsys, "evaluate", str(bare), "digits", "--split", "test", *GIVEN)
    assert code == 0, err
    assert "assumed: heads" not in err
    code, _, err = call(capsys, "load-check", str(bare), "--heads", "7")
    assert (code, "heads=7 does not divide width=192" in err) == (2, True)


def test_names_of_classes(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    bare: Path,
    tmp_path: Path,
) -> None:
    names = [str(number) for number in range(10)]
    vitlab.evaluate(vitlab.load(bare), "digits", split="test")
    assert "matched by position (0 0, 1 1, 2 2, …)" in caplog.text
    caplog.clear()
    named = vitlab.load(bare, labels=names)
    assert named.config.labels == tuple(names)
    turned = vitlab.load(bare, labels=names[::-1])  # other names, so other answers are right
    figures = [vitlab.evaluate(each, "digits", split="test") for each in (named, turned)]
    assert figures[0]["nll"] != figures[1]["nll"]
    assert "matched by position" not in caplog.text
    file = tmp_path / "names.txt"
    for text in ("\n".join(names) + "\n\n", json.dumps(names), json.dumps(dict(enumerate(names)))):
        file.write_text(text)
        code, out, _ = call(capsys, "load-check", str(bare), "--labels", str(file), "--json")
        assert code == 0
        assert json.loads(out)["config"]["labels"] == names
    new = vitlab.load(bare, classes=2, labels=["cat", "dog"])
    assert new.config.labels == ("cat", "dog")


def test_names_that_cannot_be(bare: Path, tmp_path: Path) -> None:
    file, usual = tmp_path / "names.txt", "one name per line"
    wrong = {"a\n\nb\n": usual, '["a", 3]': usual, '{"0": "a", "2": "b"}': usual, "": usual}
    for text, part in (wrong | {"[": "cannot be read"}).items():
        file.write_text(text)
        with pytest.raises(OptionError, match=part):
            Stated(labels=(str(file),))
    with pytest.raises(OptionError, match="no such file"):
        Stated(labels=(str(tmp_path / "nothing"),))
    with pytest.raises(OptionError, match="labels has 2 names for classes=10"):
        vitlab.load(bare, labels=["a", "b"])
    with pytest.raises(OptionError, match="labels has 3 names for classes=2"):
        vitlab.load(bare, classes=2, labels=["a", "b", "c"])


def test_one_tensor_to_leave_out_may_be_given_alone(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.safetensors"
    save_file(load_file(bare) | {"head_aux.weight": torch.zeros(2, 2)}, file)
    for drop in ("head_aux.weight", ["head_aux.*"]):
        assert vitlab.load(file, drop=drop).config == vitlab.load(bare).config
