"""`vitlab models`, `vitlab recipes` and `vitlab measure`."""

import json
from pathlib import Path

import pytest

from conftest import call
from vitlab.models.config import config_of
from vitlab.models.cost import cost
from vitlab.models.names import MODELS

SOME = ("ViT-Ti/16", "R26+ViT-S/32", "BiT-R50x1")


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    models = {m["model"]: m for m in json.loads(call(capsys, "models", "--json")[1])["models"]}
    assert models["ViT-Ti/16"]["params"] == 5_717_416
    assert models["ViT-B/16"]["macs"] == pytest.approx(17.568e9, rel=1e-4)
    recipes = json.loads(call(capsys, "recipes", "--json")[1])["recipes"]
    assert {"digits", "small", "cifar10"} <= {each["recipe"]["recipe"] for each in recipes}
    assert all(each["about"].strip() and "\n" not in each["about"] for each in recipes)
    for command, last in (("models", "have names too: ViT-S18x2/14"), ("recipes", "--help-all")):
        code, out, err = call(capsys, command)
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 5
        assert last in out.splitlines()[-1]


@pytest.mark.parametrize(
    "names", [SOME, pytest.param(tuple(MODELS), marks=pytest.mark.campaign)], ids=["some", "all"]
)
def test_the_listed_costs_are_those_of_the_models(names: tuple[str, ...]) -> None:
    costs = {name: cost(config_of(name)) for name in names}
    found = {name: (each.params, each.macs) for name, each in costs.items()}
    assert found == {name: MODELS[name] for name in names}


def test_measure(capsys: pytest.CaptureFixture[str], digits_run: Path) -> None:
    figures = json.loads(call(capsys, "measure", "ViT-B/16", "--json")[1])
    assert (figures["model"], figures["params"]) == ("ViT-B/16", 86_567_656)
    assert sum(part["macs"] for part in figures["parts"]) == figures["macs"]
    words = ["measure", "BiT-R(1-1)x1", "ViT-Ti/16", "--image-size", "64", "96", "--json"]
    several = json.loads(call(capsys, *words)[1])["models"]
    assert [each["model"] for each in several] == ["BiT-R(1-1)x1", "ViT-Ti/16"]
    assert several[1]["image_size"] == [64, 96]
    words = ["measure", str(digits_run), "--speed", "--fuse", "--batch", "3", "--json"]
    timed = json.loads(call(capsys, *words)[1])
    assert timed["batch"] == 3
    assert timed["images_per_second"] == pytest.approx(3 / timed["latency"])
    small = "ViT(width=32,depth=1,heads=2,mlp=64)/4"
    words = ["measure", small, "--image-size", "8", "--engines", "--device", "cpu"]
    ranked = json.loads(call(capsys, *words, "--json")[1])["engines"]
    assert ("plain", "fp32") in {(each["engine"], each["precision"]) for each in ranked}
    speeds = [each["images_per_second"] for each in ranked]
    assert speeds == sorted(speeds, reverse=True)
    assert "engine, the fastest first" in call(capsys, *words)[1]
    code, out, _ = call(capsys, "measure", "ViT-Ti/16")
    assert code == 0
    assert "attention" in out
