"""A run keeps the order of images that it was started with, which its `run.toml` names."""

import re
from pathlib import Path

import pytest

import vitlab
from conftest import TINY
from steps import each_step
from training.kept import EACH, stopped
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.order import Order, Stream
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import RunError
from vitlab.runs.run_folder import RunFolder
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

RECIPE = vitlab.recipe("digits", **TINY | {"steps": 6, "batch": 16, "test_every": 1.0})


def name_order(folder: Path, order: str) -> None:
    """Let `run.toml` name an order, or none."""
    file = folder / "run.toml"
    text = re.sub(r'^order = ".*"\n', "", file.read_text(), flags=re.MULTILINE)
    line = f'order = "{order}"\n' if order else ""
    file.write_text(text.replace("[run]\n", f"[run]\n{line}", 1))
    assert RunFolder(folder).order == order


@pytest.mark.parametrize(("named", "change"), [("", False), ("", True), ("keyed", False)])
def test_a_resumed_run_has_the_order_that_its_file_names(
    named: str, change: bool, tmp_path: Path
) -> None:
    """A file that names none is of a version that had listed orders alone."""
    stopped(3, RECIPE, tmp_path)
    assert RunFolder(tmp_path).order == "keyed"  # of new runs
    name_order(tmp_path, named)
    images: dict[int, list[int]] = {}

    def note(trainer: Trainer, state: RunState, batch: Batch) -> None:
        images[state.step] = batch.indices.tolist()

    recipe = RECIPE.changed(lr=1e-4) if change else RECIPE
    with each_step(before=note):
        vitlab.train(recipe, tmp_path, resume=True, change=change, host=EACH)
    assert [*images] == [3, 4, 5]
    stream = Stream(
        RECIPE.seed, len(open_to_learn("digits").train), 16, order=Order(named or "listed")
    )
    assert images == {step: stream.samples(step).indices.tolist() for step in images}
    assert RunFolder(tmp_path).order == named


def test_an_order_that_this_version_does_not_know_is_refused_in_a_line(tmp_path: Path) -> None:
    stopped(2, RECIPE, tmp_path)
    name_order(tmp_path, "spiral")
    line = "was started with the order spiral of images, which this version of ViTLab does not know"
    with pytest.raises(RunError, match=line):
        vitlab.train(RECIPE, tmp_path, resume=True, host=EACH)
