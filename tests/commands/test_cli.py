"""The command line as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

import vitlab
from conftest import call, environment, photo_folder
from golden.rules import without_progress
from vitlab.command_table import Command
from vitlab.commands.recipes import Recipes
from vitlab.errors import UserError

BAD = {
    "no command": (["fly"], "unknown command 'fly'; choose from finetune, train, pretrain"),
    "long": (["x" * 5000], "unknown command 'xxx"),
    "no data": (["train"], "no data given: name digits, a folder"),
    "no path": (["train", "{tmp}/nowhere"], "no such file or folder: {tmp}/nowhere"),
    "empty": (["train", "{tmp}/empty"], "{tmp}/empty has no class folders with images"),
    "one class": (["train", "{tmp}/one"], "has only one class ('only'); at least 2"),
    "patch": (
        ["train", "digits", "--model", "ViT-Ti/3", "--image-size", "8"],
        "image_size=8 is not a multiple of patch=3: try 6 or 9",
    ),
    "image size": (
        ["train", "digits", "--model", "ViT-Ti/4", "--image-size", "10"],
        "image_size=10 is not a multiple of patch=4: try 8 or 12",
    ),
    "model": (["train", "digits", "--model", "ViT-Tj/2"], "unknown model 'ViT-Tj/2': did you mean"),
    "recipe": (["train", "x", "--recipe", "digit"], "unknown recipe 'digit': did you mean digits"),
    "option": (["train", "digits", "--lrr", "3"], "unknown option 'lrr': did you mean lr?"),
    "number": (["train", "digits", "--lr", "fast"], "lr must be a number above 0, not fast"),
    "share": (["train", "digits", "--max-bad", "x%"], "max_bad must be a number at least 0"),
    "choice": (["train", "digits", "--precision", "fp8"], "fp8"),
    "classes": (["train", "digits", "--classes", "12"], "classes=12, but digits has 10 classes"),
    "device": (["train", "digits", "--device", "tpu7"], "unknown device 'tpu7'"),
    "gpu": (["train", "digits", "--device", "cuda:77"], "device 'cuda:77' is missing"),
    "kept": (["train", "digits", "--out", "{tmp}/one"], "exists and contains no run"),
    "weights": (["evaluate", "{tmp}/nowhere", "digits"], "no such file or folder: {tmp}/nowhere"),
    "no model": (["evaluate", "{tmp}/one", "digits"], "{tmp}/one contains no model"),
    "image": (["predict", "{run}", "{tmp}/x.png"], "no such file or folder: {tmp}/x.png"),
    "no images": (["predict", "{run}", "{tmp}/empty"], "no images in {tmp}/empty"),
    "bad image": (["predict", "{run}", "{tmp}/bad.png"], "bad.png"),
    "other data": (["evaluate", "{run}", "{tmp}/two"], "contains class 'a', which is not"),
    "no home": (["runs", "~nobody-at-all/x"], "begins with ~ and a user that is not known here"),
    "no words": (["evaluate", "{run}"], "missing DATA; usage: vitlab evaluate WEIGHTS DATA"),
    "nothing to measure": (["measure"], "missing MODEL ...; usage: vitlab measure MODEL ..."),
    "no weights to state facts of": (
        ["measure", "ViT-Ti/16", "--part", "student"], "part applies only to weights, and ViT-Ti/1"
    ),
    "unmeasurable": (["measure", "ViT-B/15"], "image_size=224 is not a multiple of patch=15"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bad")
    (place / "empty").mkdir()
    photo_folder(place / "one", {"only": 3})
    photo_folder(place / "two", {"a": 3, "b": 3})
    (place / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return place


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], digits_run: Path, place: Path, case: str
) -> None:
    words, says = BAD[case]
    before = sorted(place.rglob("*"))
    filled = [word.format(tmp=place, run=digits_run) for word in words]
    code, out, err = call(capsys, *filled)
    assert (code, out) == (2, "")
    *before_it, line = err.splitlines()
    assert len(before_it) <= (words[0] == "train"), err  # which says at once what it begins
    assert says.format(tmp=place, run=digits_run) in line
    assert len(line) < 400
    assert sorted(place.rglob("*")) == before
    assert not list(Path().iterdir())  # no runs/ either


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--version", "-V"):
        assert call(capsys, word) == (0, f"vitlab {vitlab.__version__}\n", "")


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "help") == call(capsys, "--help") == call(capsys)
    assert call(capsys, "help", "models") == call(capsys, "models", "--help")


def test_a_closed_pipe_is_no_error() -> None:
    words = f"{sys.executable} -m vitlab models | head -n 1"
    done = subprocess.run(
        words, shell=True, capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0
    assert without_progress(done.stderr) == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_has_no_room_is_one_line() -> None:
    words = [sys.executable, "-m", "vitlab", "models"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment()
        )
    assert (done.returncode, done.stderr) == (2, "vitlab models: no space left on device\n")


def test_an_interrupt_and_what_another_process_has_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = KeyboardInterrupt("stopped after step 7")
    error = UserError("refused")
    for raised, status, words in (
        (stop, 130, "vitlab recipes: stopped after step 7\n"),
        (KeyboardInterrupt(), 130, "vitlab recipes: interrupted\n"),
        (error, 2, "vitlab recipes: refused\n"),
    ):

        def run(options: object, raised: BaseException = raised) -> None:
            raise raised

        run.__annotations__ = {"options": Recipes}
        monkeypatch.setattr("vitlab.commands.recipes.COMMAND", Command(run, is_light=True))
        assert call(capsys, "recipes") == (status, "", words)
        raised.quiet = True  # type: ignore[attr-defined]
        assert call(capsys, "recipes") == (status, "", "")


def test_an_empty_result_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: Recipes) -> dict[str, object]:
        return {}

    monkeypatch.setattr("vitlab.commands.recipes.COMMAND", Command(run, is_light=True))
    assert call(capsys, "recipes", "--json") == (0, "", "")
