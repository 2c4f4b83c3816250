"""Figures that studies measure: few-shot accuracy, and shares of the accuracy that are kept."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from vitlab.data.open_splits import open_to_learn
from vitlab.device import choose
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.probing import probe
from vitlab.models.create import create
from vitlab.studies.base import small
from vitlab.studies.design import Trained
from vitlab.studies.papers import advice, study_named
from vitlab.studies.papers.advice import relies_on as measure
from vitlab.studies.papers.architecture import DRAWS, SHOTS, few_shot

TINY = "ViT(width=32,depth=2,heads=2,mlp=32)/2"
SMALLER = "ViT(width=16,depth=1,heads=2,mlp=16)/2"


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_is_the_mean_of_the_probes_draws(tmp_path: Path) -> None:
    model = create(TINY, image_size=8, channels=1, classes=10, generator=generator())
    splits = open_to_learn("digits")
    trained = Trained(model, small("digits", TINY), splits, tmp_path, torch.device("cpu"))
    found = few_shot(trained)["few_shot"]
    probing = Probing(protocol=("fewshot",), shots=(SHOTS,), seeds=DRAWS, cache="no")
    expected = probe(model, "digits", probing, Compute("cpu", workers=0))["fewshot"][str(SHOTS)]
    assert found == pytest.approx(expected["accuracy"], abs=1e-9)
    assert 0.2 < found < 0.95  # features of random weights say something of digits


def test_learns_from_the_downstream_data_if_there_are_any(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    images[20:, :, :, 0] //= 4  # the second class is less red
    other = open_to_learn((images, np.repeat([0, 1], 20)))
    model = create(TINY, image_size=8, channels=3, classes=10, generator=generator())
    recipe, device = small("digits", TINY), torch.device("cpu")
    trained = Trained(model, recipe, open_to_learn("digits"), tmp_path, device, other)
    assert few_shot(trained)["few_shot"] > 0.8
    few = open_to_learn((images[15:25], np.repeat([0, 1], 5)))  # four of each class to learn from
    assert few_shot(Trained(model, recipe, few, tmp_path, device)) == {}


def test_measures_shares_of_the_accuracy_above_chance_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitlab.create(SMALLER, 10, 8)
    splits = open_to_learn("digits")
    trained = Trained(model, small("digits", SMALLER), splits, tmp_path, choose("cpu"))
    own = vitlab.inductive_bias(model, splits.test, images=1000, device="cpu")
    own |= {"clean": 0.6, "occluded_50": 0.35, "shuffled_4": 0.1, "shape_bias": math.nan}
    monkeypatch.setattr(advice, "inductive_bias", lambda *given, **more: own)
    found = measure(trained)
    assert found["kept_occluded_50"] == pytest.approx(0.5)  # of ten classes
    assert found["kept_shuffled_4"] == 0
    columns = study_named("bias").columns
    assert {column.key for column in columns[1:]} - {"shape_bias"} <= found.keys()
    assert "shape_bias" not in found
    own["clean"] = 0.1
    assert not [key for key in measure(trained) if key.startswith("kept")]
    assert "kept_consistency_1" not in found
