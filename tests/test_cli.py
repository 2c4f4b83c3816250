"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab
from conftest import photo, photo_folder
from vitlab.cli import commands, main

TINY_MODEL = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
QUICK = ["--model", TINY_MODEL, "--epochs", "1", "--batch", "256", "--workers", "0"]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command in this process: exit status, stdout, stderr."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits, by the command line."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--out", str(folder), *QUICK])
    assert not stop.value.code
    return folder


def test_train_prints_one_json_object(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    words = ["train", str(photos), "--out", str(tmp_path / "r"), "--json", "--seed", "4", *QUICK]
    words += ["--dropout", "0.1", "--no-flip", "--precision", "bf16"]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["run"] == str(tmp_path / "r")
    assert Path(figures["report"]).is_file()
    recipe = (tmp_path / "r" / "run.toml").read_text()
    for line in ("seed = 4", "dropout = 0.1", "flip = false", 'precision = "bf16"', "epochs = 1"):
        assert line in recipe
    assert "vitlab train" in recipe
    again = ["train", "--out", str(tmp_path / "r"), "--resume", "--json"]
    code, out, err = call(capsys, *again)
    assert (code, json.loads(out)) == (0, figures)


def test_evaluate(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, out, _ = call(capsys, "evaluate", str(run), "digits", "--json")
    figures = json.loads(out)
    assert code == 0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("accuracy", "top5", "ece", "images", "params", "macs"):
        assert figures[key] == last[key]
    code, out, _ = call(capsys, "evaluate", str(run), "digits", "--split", "train")
    assert code == 0
    assert "1,438" in out


def test_predict_files_folders_and_globs(
    capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    folder = photo_folder(tmp_path / "some", {"a": 2, "b": 1}, 8, 8)
    (folder / "b" / "bad.png").write_bytes(b"x")
    pattern = str(folder / "a" / "*.png")
    code, out, err = call(capsys, "predict", str(run), str(folder), pattern, "--json", "--top", "3")
    answers = json.loads(out)["predictions"]
    assert code == 0
    names = [Path(each["image"]).name for each in answers]
    assert names == ["000.png", "001.png", "000.png", "bad.png", "000.png", "001.png"]
    good = [each for each in answers if "top" in each]
    assert len(good) == 5
    for each in good:
        chances = [item["probability"] for item in each["top"]]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert set(each["top"][0]) == {"class", "probability"}
    assert answers[0] == answers[4]
    assert "bad.png" in err
    code, out, _ = call(capsys, "predict", str(run), str(folder / "a" / "000.png"))
    assert code == 0
    assert "000.png" in out
    assert "%" in out


def test_predictions_are_those_of_evaluation(run: Path, tmp_path: Path) -> None:
    """The same image gets the same probabilities whichever way it comes."""
    from PIL import Image

    from vitlab.data.sources.opening import open_data
    from vitlab.device import choose
    from vitlab.evaluation.predictions import predict

    model, test = vitlab.load(run), open_data("digits").test
    pixels = test.image(5).decode(1)
    Image.fromarray(pixels[..., 0]).save(tmp_path / "x.png")
    answer = vitlab.classify(model, [str(tmp_path / "x.png")], top=10)[0]
    row = predict(model, test, device=choose("cpu")).probabilities[5]
    for name, probability in answer.classes:
        assert probability == pytest.approx(row[int(name)], abs=1e-6)


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    models = {m["model"]: m for m in json.loads(call(capsys, "models", "--json")[1])["models"]}
    assert models["ViT-Ti/16"]["params"] == 5_717_416
    assert models["ViT-B/16"]["macs"] == pytest.approx(17.568e9, rel=1e-4)
    recipes = json.loads(call(capsys, "recipes", "--json")[1])["recipes"]
    assert {"digits", "small", "cifar10"} <= {each["recipe"]["recipe"] for each in recipes}
    for command in ("models", "recipes"):
        code, out, err = call(capsys, command)
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 5


def test_measure(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    figures = json.loads(call(capsys, "measure", "ViT-B/16", "--json")[1])
    assert (figures["model"], figures["params"]) == ("ViT-B/16", 86_567_656)
    assert sum(part["macs"] for part in figures["parts"]) == figures["macs"]
    words = ["measure", "BiT-R50x1", "ViT-Ti/16", "--image-size", "64", "96", "--json"]
    several = json.loads(call(capsys, *words)[1])["models"]
    assert [each["model"] for each in several] == ["BiT-R50x1", "ViT-Ti/16"]
    assert several[1]["image_size"] == [64, 96]
    words = ["measure", str(run), "--speed", "--fuse", "--batch", "3", "--json"]
    timed = json.loads(call(capsys, *words)[1])
    assert timed["batch"] == 3
    assert timed["images_per_second"] == pytest.approx(3 / timed["latency"])
    code, out, _ = call(capsys, "measure", "ViT-Ti/16")
    assert code == 0
    assert "attention" in out


BAD = {
    "no command": (["fly"], "unknown command 'fly'; choose from train, evaluate"),
    "no data": (["train"], "no data given: name digits, a folder"),
    "no path": (["train", "{tmp}/nowhere"], "no such file or folder: {tmp}/nowhere"),
    "empty": (["train", "{tmp}/empty"], "{tmp}/empty is empty"),
    "one class": (["train", "{tmp}/one"], "has only one class ('only'); at least 2"),
    "patch": (
        ["train", "digits", "--model", "ViT-Ti/3"],
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
    "share": (["train", "digits", "--max-bad", "x%"], "max_bad must be a number at least 0 and"),
    "choice": (["train", "digits", "--precision", "fp8"], "fp8"),
    "classes": (["train", "digits", "--classes", "12"], "classes=12, but digits has 10: leave it"),
    "device": (["train", "digits", "--device", "tpu7"], "unknown device 'tpu7'"),
    "gpu": (["train", "digits", "--device", "cuda:77"], "device 'cuda:77' is not there"),
    "kept": (["train", "digits", "--out", "{tmp}/one"], "exists and contains no run"),
    "weights": (["evaluate", "{tmp}/nowhere", "digits"], "no such file or folder: {tmp}/nowhere"),
    "no model": (["evaluate", "{tmp}/one", "digits"], "{tmp}/one contains no model"),
    "image": (["predict", "{run}", "{tmp}/x.png"], "no such file: {tmp}/x.png"),
    "no images": (["predict", "{run}", "{tmp}/empty"], "no images in {tmp}/empty"),
    "bad image": (["predict", "{run}", "{tmp}/bad.png"], "bad.png"),
    "other data": (["evaluate", "{run}", "{tmp}/two"], "contains class 'a', which is not"),
    "no words": (["evaluate", "{run}"], "DATA is missing: vitlab evaluate WEIGHTS DATA"),
    "nothing to measure": (["measure"], "MODELS ... is missing: vitlab measure MODELS ..."),
    "unmeasurable": (["measure", "ViT-B/15"], "image_size=224 is not a multiple of patch=15"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path, case: str
) -> None:
    words, says = BAD[case]
    (tmp_path / "empty").mkdir()
    photo_folder(tmp_path / "one", {"only": 3})
    photo_folder(tmp_path / "two", {"a": 3, "b": 3})
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    before = sorted(tmp_path.rglob("*"))
    filled = [word.format(tmp=tmp_path, run=run) for word in words]
    code, out, err = call(capsys, *filled)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert says.format(tmp=tmp_path, run=run) in err
    assert sorted(tmp_path.rglob("*")) == before
    assert not list(Path().iterdir())  # no runs/ either


def test_a_run_is_not_overwritten(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, _, err = call(capsys, "train", "digits", "--out", str(run))
    assert code == 2
    advice = "pass --resume to continue it, or choose another --out"
    assert err == f"vitlab train: {run} already contains a run: {advice}\n"
    code, _, err = call(capsys, "train", "digits", "--out", str(run), "--resume", "--lr", "0.5")
    assert code == 2
    assert "was started with lr=" in err
    assert "not 0.5: leave the option out" in err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in commands():
        assert command in out
        code, text, err = call(capsys, command, "--help")
        assert (code, err) == (0, "")
        assert f"usage: vitlab {command}" in text
    code, out, _ = call(capsys, "--version")
    assert out == f"vitlab {vitlab.__version__}\n"


def modules_after(*words: str) -> set[str]:
    """What a fresh interpreter has imported after some code."""
    code = f"import sys\n{words[0]}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return set(done.stderr.splitlines()[-1].split())


HEAVY = {"torch", "numpy", "datasets", "matplotlib", "PIL", "tyro", "rich"}


def test_importing_vitlab_imports_next_to_nothing() -> None:
    loaded = modules_after("import vitlab")
    assert not loaded & HEAVY
    bare = modules_after("import importlib, typing")
    assert {name for name in loaded - bare if not name.startswith("vitlab")} == set()


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["evaluate", "--help"], ["recipes"], ["models", "--help"]],
)
def test_help_does_not_import_torch(words: list[str]) -> None:
    code = f"from vitlab.cli import main\ntry: main({words})\nexcept SystemExit: pass"
    loaded = modules_after(code)
    assert not loaded & {"torch", "datasets", "matplotlib"}
    if words == ["--help"]:
        assert not loaded & HEAVY


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    words = f"{sys.executable} -m vitlab models | head -n 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_python_dash_m_and_its_exit_status(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vitlab", "train", str(tmp_path / "no")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"vitlab train: no such file or folder: {tmp_path}/no\n"


def test_the_public_names_are_there() -> None:
    for name in vitlab.__all__:
        assert getattr(vitlab, name) is not None
    assert set(vitlab.__all__) <= set(dir(vitlab))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitlab.nothing  # noqa: B018
    assert photo(0).size == (32, 24)
