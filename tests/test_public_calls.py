"""Public functions: a wrong type is one line, quiet=True is quiet, messages are logging's."""

import copy
import json
import logging
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import LIGHT, TINY
from vitlab.errors import DataError, DiskError, OptionError
from vitlab.evaluation.records import EvaluationRecord

WRONG = [3, None, 1.5, b"x", {}, object(), len]
RECIPES = ("train", "sweep", "cross_validate", "repeat")
MODELS = ("accelerate", "calibrate", "choose_thresholds", "classify", "evaluate", "fuse", "delta",
          "embed", "export", "save", "inductive_bias", "push", "MultiTask")  # fmt: skip
LISTS = ("compare", "soup")
NAMES = ("load", "recipe", "study", "compare", "soup")
ARGUMENTS = {"delta": 2, "embed": 3, "export": 2, "save": 2, "push": 2, "fuse": 1, "accelerate": 1}


@pytest.mark.parametrize("name", [*RECIPES, *MODELS, *NAMES])
def test_a_wrong_type_is_one_line_that_says_what_is_needed(name: str) -> None:
    function: Callable[..., Any] = getattr(vitlab, name)
    count = ARGUMENTS.get(name, 1 if name in (*RECIPES, *NAMES, "MultiTask") else 2)
    words = "a Recipe is needed: vitlab.recipe(...)" if name in RECIPES else (
        "a model is needed: vitlab.load(...)" if name in MODELS else "is needed")  # fmt: skip
    wrong = [*WRONG, "photos"] if name in RECIPES else WRONG
    for value in (each for each in wrong if not isinstance(each, bytes) or name not in LISTS):
        with pytest.raises(OptionError) as caught:
            function(*[value] * count)
        text = str(caught.value)
        assert words in text
        assert f"is of type {type(value).__name__}, but" in text
        assert "\n" not in text


OUT = ("train", "finetune", "probe", "sweep", "cross_validate", "repeat", "compare")


@pytest.mark.parametrize("name", OUT)
def test_where_a_run_goes_is_a_name(name: str) -> None:
    recipe = vitlab.recipe("digits")
    first = (["a", "b"],) if name == "compare" else (recipe,)
    if name in ("finetune", "probe"):
        first = ("digits", "/nowhere")
    for value in (3, True, [1], len):
        with pytest.raises(OptionError, match=r"^out is of type .*, but a name is needed$"):
            getattr(vitlab, name)(*first, value)


def test_arrays_and_models_of_another_type_are_one_line() -> None:
    for value in ("photos", b"x", object()):
        with pytest.raises(DataError, match=r"^x_train must be an array of numbers"):
            vitlab.fewshot(value, value, value)  # type: ignore[arg-type]
    for value in (3, None, [1]):
        with pytest.raises(OptionError, match="a model or its configuration is needed"):
            vitlab.preprocess(value)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".parquet", "a" * 245 + ".parquet"])
def test_a_name_that_is_too_long_is_one_line_and_leaves_nothing(
    name: str, photos: Path, tmp_path: Path
) -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 3, 8)
    with pytest.raises(DiskError):
        vitlab.embed(model, str(photos), tmp_path / name, workers=0)
    assert [each.name for each in tmp_path.iterdir()] == ["photos"]


def test_figures_are_attributes_of_a_dictionary(photos: Path) -> None:
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 3, 8)
    found = vitlab.evaluate(model, str(photos), workers=0)
    assert isinstance(found, EvaluationRecord)
    assert found.accuracy == found["accuracy"]
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(dict(found)))
    assert found | {"more": 1} == {**found, "more": 1}
    assert "accuracy" in dir(found)
    for same in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert same == found
        assert type(same) is EvaluationRecord
    with pytest.raises(AttributeError, match="no 'acuracy': there are accuracy, "):
        found.acuracy  # noqa: B018
    assert not hasattr(found, "map")


def test_quiet_prints_nothing_but_warnings(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("small", data=str(photos), **TINY | {"epochs": 1, "image_size": 8})
    vitlab.train(recipe, tmp_path / "loud", host=LIGHT)
    assert "loud" in capsys.readouterr().err
    run = vitlab.train(recipe, tmp_path / "quiet", quiet=True, host=LIGHT)
    assert capsys.readouterr() == ("", "")
    (photos / "red" / "000.png").write_bytes(b"x")
    for quiet in (True, False):
        vitlab.embed(run.model, str(photos), tmp_path / f"{quiet}.parquet", workers=0, quiet=quiet)
        assert ("skipped: " in capsys.readouterr().err) is not quiet
    logging.getLogger("vitlab").warning("a warning")
    assert capsys.readouterr().err == "a warning\n"


def test_messages_go_where_the_program_logs(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And are not printed twice."""
    (photos / "red" / "000.png").write_bytes(b"x")
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 0, 8)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers, handler])
    vitlab.embed(model, str(photos), tmp_path / "x.parquet", workers=0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(lines) == 1
    assert lines[0].startswith("vitlab INFO: skipped: ")
    assert any("skipped" in each.getMessage() for each in caplog.records)
