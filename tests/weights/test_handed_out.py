"""What is handed out names data and bases by their last names: no folders of this machine."""

import getpass
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, photo_folder
from made_models import noisy, tiny
from vitlab.recipes.recipe import Host
from vitlab.recorded_paths import last_name, strip_places
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.publish import card
from vitlab.weights.save import save_provenance

SECRET = "folder-of-ann"
FOLDERS = ("vitlab", "timm", "transformers", "google", "peft")
COMPILED = pytest.param("torch", marks=pytest.mark.slow)


def written(place: Path) -> dict[str, bytes]:
    """Every byte of a file or folder, also of what is packed, by where it is."""
    found = dict[str, bytes]()
    for file in [place] if place.is_file() else filter(Path.is_file, place.rglob("*")):
        found[str(file)] = file.read_bytes()
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                found |= {f"{file}/{name}": packed.read(name) for name in packed.namelist()}
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with LoRA on absolute paths."""
    place = tmp_path_factory.mktemp("handed") / SECRET
    photo_folder(place / "photos", {"blue": 8, "green": 8, "red": 8}, 16, 16)
    name = "ViT(width=16,depth=2,heads=2,mlp=32)/8"
    vitlab.save(noisy(tiny(name=name, fit="squash", gelu="tanh")), place / "base")
    return vitlab.finetune(
        place / "photos", place / "base", place / "runs" / "lora", tune="lora", head_start="zero",
        epochs=2, batch=8, lr=0.05, warmup=0, precision="fp32", quiet=True,
        host=Host(device="cpu", workers=0, report="no", effort=BRIEF),
    )  # fmt: skip


def check_silent(place: Path) -> None:
    """Nothing in it names the folder, the user, or where temporary files are."""
    user = getpass.getuser()
    for where, content in written(place).items():
        for word in (SECRET, f"/home/{user}/", f"_{user}/", str(Path.cwd()), "/tmp/", "/dev/shm/"):
            assert word.encode() not in content, f"{where}: {word}"


@pytest.mark.parametrize("target", FOLDERS)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_saved_model_has_no_folder_of_this_machine(
    run: Any, target: str, loaded: bool, tmp_path: Path
) -> None:
    model = vitlab.load(run.folder) if loaded else run.model
    vitlab.save(model, tmp_path / "out", to=target)
    check_silent(tmp_path)


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("target", ["onnx", "web", COMPILED])
def test_an_exported_file_has_no_folder_of_this_machine(
    run: Any, target: str, tmp_path: Path
) -> None:
    endings = {"onnx": ".onnx", "torch": ".pt2", "web": ""}
    vitlab.export(vitlab.load(run.folder), tmp_path / f"out{endings[target]}", target)
    check_silent(tmp_path)


def test_a_model_card_and_what_is_pushed_with_it(run: Any, tmp_path: Path) -> None:
    model = vitlab.load(run.folder)
    model.provenance |= {  # as an older version saved it
        "base": f"/x/{SECRET}/base", "data": f"/x/{SECRET}/photos", "source": f"~/{SECRET}/base",
        "metrics": {"accuracy": 0.5, "data": f"/x/{SECRET}/photos", "images": 6},
        "calibration": {"data": f"../{SECRET}/photos"},
        "soup": {"ingredients": [{"source": f"/x/{SECRET}/one"}]},
    }  # fmt: skip
    text = card(model, "ann/model")
    assert SECRET not in text
    assert "| data | photos |" in text
    about = json.loads((vitlab.save(model, tmp_path / "saved") / "config.json").read_text())
    assert SECRET not in json.dumps(about)
    assert about["provenance"]["calibration"] == {"data": "photos"}
    assert about["provenance"]["base_fingerprint"] == RunFolder(run.folder).base
    save_provenance(model, tmp_path / "saved")
    assert SECRET not in (tmp_path / "saved" / "config.json").read_text()


def test_deltas(run: Any, tmp_path: Path) -> None:
    for name in ("delta.safetensors", "model"):
        place = run.folder / name
        assert all(SECRET.encode() not in each for each in written(place).values())
    base = vitlab.load(run.folder.parents[1] / "base")
    change = vitlab.delta(vitlab.load(run.folder), base)
    file = change.save(run.folder.parents[1] / "tasks" / "d.safetensors")
    assert all(SECRET.encode() not in each for each in written(file).values())
    vitlab.load(file)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/home/ann/photos", "photos"), ("/home/ann/photos/", "photos"), ("~/photos", "photos"),
        ("../ann/photos", "photos"), ("data/../../ann/photos", "photos"), ("photos", "photos"),
        ("data/photos", "data/photos"), ("google/vit", "google/vit"), ("C:\\Users\\ann\\x", "x"),
        ("vtab:/home/ann/vtab/cifar100", "vtab:cifar100"), ("file:///home/ann/a.tar", "a.tar"),
        ("/home/ann/shards/*.tar", "*.tar"), ("s3://bucket/shards", "s3://bucket/shards"),
        ("https://ann:pw@host/a.tar?token=1#x", "https://host/a.tar"), ("in memory", "in memory"),
        ("digits", "digits"), ("", ""), ("\\\\server\\ann\\x", "x"),
    ],
)  # fmt: skip
def test_last_names(text: str, name: str) -> None:
    assert last_name(text) == name
    assert strip_places({"a": [text, 3, None]}) == {"a": [name, 3, None]}
