"""Figure 7 of a tiny model: what is measured, what is drawn, what is refused."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import call
from vitlab.data.sources.opening import open_data
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Host, Recipe
from vitlab.studies.figure_seven import HEAD, row_column_contrast, study, table

TINY = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/2", "steps": 2, "batch": 64}
HOST = Host(workers=0)


def recipe(**more: object) -> Recipe:
    return vitlab.recipe("digits", **TINY | more)


def cosines(places: np.ndarray) -> np.ndarray:
    """Cosine of every two places: (rows, columns, D) -> (rows, columns, rows, columns)."""
    unit = places / np.linalg.norm(places, axis=-1, keepdims=True)
    return np.einsum("rcd,RCd->rcRC", unit, unit)


def test_positions_made_of_a_row_and_a_column_have_the_contrast_on_paper() -> None:
    row, column = np.eye(6)[:, None].repeat(8, 1), np.eye(8)[None].repeat(6, 0)
    both = cosines(np.concatenate([row, column], -1))  # a half in one row or column, else nothing
    found = row_column_contrast(both)
    assert found == {"row": 0.5, "column": 0.5, "others": 0.0, "contrast": 0.5}
    only = row_column_contrast(cosines(np.concatenate([row, 0 * column], -1)))
    assert only == {"row": 1.0, "column": 0.0, "others": 0.0, "contrast": 0.5}


def test_positions_that_know_distances_alone_have_next_to_none() -> None:
    rows, columns = np.indices((8, 8))
    apart = np.hypot(rows[..., None, None] - rows, columns[..., None, None] - columns)
    assert row_column_contrast(np.ones((8, 8, 8, 8)))["contrast"] == 0
    assert abs(row_column_contrast(np.exp(-apart / 3))["contrast"]) < 0.03
    assert row_column_contrast(np.ones((1, 1, 1, 1)))["contrast"] == 0  # nothing to compare


def test_the_figures_are_those_of_the_model_and_its_test_images(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--model", TINY["model"], "--steps", "2", "--batch", "64", "--workers", "0"]
    out = str(tmp_path / "study")
    status, text, _ = call(capsys, "study", "figure-7", "digits", *words, "--out", out, "--json")
    assert status == 0
    result = json.loads(text)
    model = vitlab.load(result["run"])
    test = open_data("digits").test
    draw = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:1024]
    images = vitlab.preprocess(model)([test.image(n).decode(1)[..., 0] for n in draw.tolist()])
    heads = vitlab.inspect.attention_distance(model, images)
    np.testing.assert_allclose(result["heads"], heads, atol=2e-3)
    np.testing.assert_allclose(result["distance"], heads.mean(1), atol=2e-3)
    rows, columns = np.indices(model.config.grid).reshape(2, -1)
    apart = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    assert result["uniform"] == pytest.approx(2 * apart.mean(), abs=1e-3)
    page = Path(result["report"]).read_text()
    for shade, ground in (("light", 255), ("dark", 0x19)):
        pixels = np.asarray(Image.open(result[shade]).convert("RGB"))
        assert pixels[0, 0, 0] == ground
        assert base64.b64encode(Path(result[shade]).read_bytes()).decode() in page
    assert "http" not in page.split("<body>")[1]
    assert {len(line) for line in table(result)} == {len(HEAD)}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model": "BiT-R(1)x1"}, "BiT-R\\(1\\)x1 has no attention: choose a Vision Transformer"),
        ({"positions": "rope"}, "positions=rope are not added to the tokens"),
    ],
)
def test_a_model_without_such_a_figure_is_refused_before_it_is_trained(
    more: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=says):
        study(recipe(**more), tmp_path / "study", HOST)
    assert not (tmp_path / "study").exists()


def test_options_of_other_studies_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = call(capsys, "study", "figure-7", "--only", "sgd")
    assert (status, error.count("\n")) == (2, 1)
    assert "only=('sgd',) applies only with name=" in error
