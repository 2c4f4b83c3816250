"""The report of a run, which is written once its result is: also where a kill came in between."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import vitlab
from conftest import SHOWN, fewer_digits, photo
from made_scenes import scene_folder
from vitlab.errors import RunError
from vitlab.recipes.head_search import HeadSearch, MaskOptions, probe_recipe
from vitlab.recipes.recipe import Host
from vitlab.run_reports.report_run import report_run
from vitlab.runs.run_folder import RunFolder
from vitlab.training.outcome import Outcome
from vitlab.training.run import RunRequest, train_and_test
from vitlab.transfer.head_runs import ProbeRequest
from vitlab.transfer.linear_probe import fit_and_test

HOST = Host(workers=0, device="cpu", check_duplicates="no", checkpoint_every=0, effort=SHOWN)
VIT = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
STEPS: dict[str, Any] = {"model": VIT, "steps": 3, "batch": 32, "precision": "fp32"}
MAE: dict[str, Any] = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    with fewer_digits(150):
        yield


class Unreported(NamedTuple):
    """A run that was killed after its result, and what continues it."""

    outcome: Outcome
    resume: Any


def trained(recipe: vitlab.Recipe, out: Path) -> Unreported:
    """A run that the loop alone has made."""
    outcome = train_and_test(RunRequest(recipe, out, host=HOST))
    return Unreported(outcome, lambda host: vitlab.train(recipe, out, resume=True, host=host))


def probed(data: str, out: Path, **fields: Any) -> Unreported:
    """A head of random weights that was fitted, without the report."""
    size = 8 if data == "digits" else 16
    model = vitlab.create(VIT, image_size=size, channels=1 if data == "digits" else 3)
    weights = str(vitlab.save(model, out.with_name("weights")))
    by = "auto" if "targets" in fields else "ridge"
    request = ProbeRequest(
        recipe=probe_recipe(weights, data=data, **fields),
        searched=HeadSearch(by=by),
        masks=MaskOptions(),
        out=out,
        images=None,
        start=None,
        resume=False,
        host=HOST,
        cache=None,
        command="",
    )

    def resume(host: Host) -> vitlab.Run:
        more = fields | {"by": by, "host": host, "cache": None, "resume": True}
        return vitlab.probe(data, weights, out, **more)

    return Unreported(fit_and_test(request), resume)


def unreported(kind: str, folder: Path) -> Unreported:
    """A run of a kind whose process was killed before its report was written."""
    out = folder / "run"
    if kind == "labels":
        return trained(vitlab.recipe("digits", patience=1, test_every=0.1, **STEPS), out)
    if kind == "masked autoencoder":
        return trained(vitlab.recipe("mae", "digits", **STEPS, **MAE), out)
    if kind == "classes by a probe":
        return probed("digits", out)
    if kind == "pixels by a probe":
        return probed(str(scene_folder(folder / "scenes", 24)), out, task="segment")
    images = folder / "images"
    images.mkdir()
    rows = [["file", "price"]]
    for number in range(40):
        photo(number, 16, 16).save(images / f"{number}.png")
        rows.append([f"images/{number}.png", str(number % 7)])
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return probed(str(folder / "table.csv"), out, targets="price")


KINDS = [
    "labels",
    "masked autoencoder",
    "pixels by a probe",
    "classes by a probe",
    "numbers by a probe",
]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_between_its_result_and_its_report_a_run_gets_it_when_it_is_resumed(
    kind: str, tmp_path: Path
) -> None:
    outcome, resume = unreported(kind, tmp_path)
    folder = RunFolder(outcome.run.folder)
    result = folder.result()
    assert not folder.report.exists()
    assert result is not None
    assert "report" not in result
    assert folder.state == "done"
    model = (folder.model / "model.safetensors").read_bytes()
    resume(Host(workers=0, device="cpu", report="no"))
    assert not folder.report.exists()
    again = resume(HOST)
    assert again.metrics == outcome.run.metrics
    assert again.metrics["report"] == str(folder.report)
    assert (folder.model / "model.safetensors").read_bytes() == model
    late = folder.report.read_text()
    folder.report.unlink()
    report_run(outcome)
    assert folder.report.read_text() == late


def test_a_report_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    outcome, resume = unreported("labels", tmp_path)
    run = report_run(outcome)
    report = run.folder / "report.html"
    report.write_text("mine")
    resume(HOST)
    assert report.read_text() == "mine"


def test_a_run_whose_checkpoints_are_gone_gets_a_report_without_pictures(tmp_path: Path) -> None:
    outcome, resume = unreported("masked autoencoder", tmp_path)
    for file in (outcome.run.folder / "checkpoints").rglob("*"):
        if file.is_file():
            file.unlink()
    resume(HOST)
    assert (outcome.run.folder / "report.html").exists()


def test_no_report_is_written_into_a_folder_that_was_removed(tmp_path: Path) -> None:
    outcome, _ = unreported("labels", tmp_path)
    outcome.run.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="was removed before its report was written"):
        report_run(outcome)
    assert not outcome.run.folder.exists()


def test_whoever_listens_hears_of_the_result_once_the_report_is_there(tmp_path: Path) -> None:
    reports = list[bool]()

    def listen(line: dict[str, Any]) -> None:
        if line["kind"] == "result":
            reports.append(Path(line["report"]).exists())

    recipe = vitlab.recipe("digits", **STEPS)
    for _ in range(2):  # the second finds it finished
        vitlab.train(recipe, tmp_path / "run", resume=True, host=HOST, on_line=listen)
    assert reports == [True]
