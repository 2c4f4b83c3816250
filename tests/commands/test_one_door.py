"""The same images, whatever the kind of DATA and whatever the command: one door for all."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import vitlab
from conftest import call, photo, photo_folder
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.explore.dataset_map import _looked_at

CLASSES = ("a", "b")


def png(number: int) -> bytes:
    stream = io.BytesIO()
    photo(number, 16, 16).save(stream, "PNG")
    return stream.getvalue()


def flat(root: Path, ending: str = "") -> str:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(6):
        (root / f"{number}.png").write_bytes(png(number))
    return f"{root}{ending}"


def classes(root: Path, ending: str = "") -> str:
    return f"{photo_folder(root, {'a': 4, 'b': 3}, 16, 16)}{ending}"


def mixed(root: Path) -> str:
    photo_folder(root, {"a": 3}, 16, 16)
    for name in "xy":
        (root / f"{name}.png").write_bytes(png(ord(name)))
    return str(root)


def splits(root: Path) -> str:
    photo_folder(root / "train", {"a": 3, "b": 3}, 16, 16)
    photo_folder(root / "test", {"a": 1, "b": 1}, 16, 16)
    return str(root)


def flat_splits(root: Path) -> str:
    flat(root / "train"), flat(root / "test")
    return str(root)


def listed(root: Path, name: str, text: str, *, inside: bool = False) -> str:
    """A list of pictures; `inside` a folder that is named itself."""
    flat(root)
    (root / name).write_text(text)
    return str(root if inside else root / name)


def table(root: Path, *, labels: bool = True, saved: bool = False) -> str:
    import datasets

    columns = {"image": [photo(n, 16, 16) for n in range(6)]}
    features = {"image": datasets.Image()}
    if labels:
        columns["label"] = [n % 2 for n in range(6)]
        features["label"] = datasets.ClassLabel(names=list(CLASSES))
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    root.mkdir(exist_ok=True)
    file = root / ("saved" if saved else "x.parquet")
    rows.save_to_disk(file) if saved else rows.to_parquet(file)
    return str(file)


def shards(root: Path, *, labels: bool = True) -> str:
    root.mkdir(exist_ok=True)
    for shard in range(2):
        with tarfile.open(root / f"s-{shard}.tar", "w") as archive:
            for number in range(3):
                own = {"png": png(3 * shard + number)}
                if labels:
                    own["cls"] = CLASSES[number % 2].encode()
                for ending, content in own.items():
                    info = tarfile.TarInfo(f"{shard}{number}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return f"{root}/s-{{0..1}}.tar"


PATHS = "path\n" + "".join(f"{n}.png\n" for n in range(5))
LABELED = "\n".join(f'{{"path": "{n}.png", "label": "{CLASSES[n % 2]}"}}' for n in range(6))
METADATA = "file_name,label\n" + "".join(f"{n}.png,{CLASSES[n % 2]}\n" for n in range(6))
KINDS: dict[str, tuple[Callable[[Path], str], int, int]] = {
    "flat folder": (flat, 6, 0),
    "class folders": (classes, 7, 7),
    "mixed folder": (mixed, 5, 3),
    "splits": (splits, 8, 8),
    "flat splits": (flat_splits, 12, 0),
    "glob": (lambda root: flat(root, "/*.png"), 6, 0),
    "glob of classes": (lambda root: classes(root, "/*/*.png"), 7, 7),
    "brace range": (lambda root: flat(root, "/{0..5}.png"), 6, 0),
    "list of paths": (lambda root: listed(root, "list.csv", PATHS), 5, 0),
    "labeled list": (lambda root: listed(root, "list.jsonl", LABELED), 6, 6),
    "metadata": (lambda root: listed(root, "metadata.csv", METADATA, inside=True), 6, 6),
    "Parquet": (table, 6, 6),
    "Parquet without labels": (lambda root: table(root, labels=False), 6, 0),
    "saved by datasets": (lambda root: table(root, saved=True), 6, 6),
    "shards": (shards, 6, 6),
    "shards without labels": (lambda root: shards(root, labels=False), 6, 0),
    "one image": (lambda root: flat(root, "/3.png"), 1, 0),
}
"""How each kind is made, its images, and those of them that have a label."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    tiny = "ViT(width=8,depth=1,heads=1,mlp=16)/8"
    model = vitlab.create(tiny, classes=2, labels=CLASSES, image_size=16)
    place = tmp_path_factory.mktemp("model") / "tiny"
    vitlab.save(model, place)
    return str(place)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_opens_the_same_images(
    kind: str, weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through Python every kind, and each command on the command line a third of them."""
    make, images, labeled = KINDS[kind]
    data, model = make(tmp_path / "data"), vitlab.load(weights)

    def figures(*words: str) -> int:
        code, out, err = call(capsys, *words, "--json")
        assert code == 0, err
        return int(json.loads(out)["images"])

    match ([*KINDS].index(kind) + 2) % 3:  # duplicates of splits, too
        case 0:
            assert figures("predict", weights, data) == images
        case 1:
            table = str(tmp_path / "e.parquet")
            assert figures("embed", weights, data, "--out", table, "--workers", "0") == images
        case 2:
            several = images if "splits" in kind else 2 * images
            assert figures("duplicates", data, data, "--workers", "0") == several
    assert len(open_images(data, "none").every()) == images  # inspect
    assert len(vitlab.classify(model, data)) == images
    looked = _looked_at(model, data)  # explore --data
    assert len(looked.source) == {"splits": 2}.get(kind, images)
    if images > 1:
        opened = open_to_learn(data, "optional")  # pretrain
        assert len(opened.train) + len(opened.test) == images
    if labeled:
        found = vitlab.evaluate(model, data, device="cpu", workers=0)
        assert found["images"] == (labeled if kind != "splits" else 2)
    else:
        with pytest.raises(vitlab.UserError, match=r"label|class"):
            vitlab.evaluate(model, data, device="cpu", workers=0)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    opened = open_images(mixed(tmp_path))
    assert any("left out 2 images without a label" in note for note in opened.notes)
    beside = open_images(str(tmp_path), "optional")
    assert (len(beside.loose or ()), beside.parts["all"].classes) == (2, ("a",))
    (tmp_path / "notes.txt").write_text("x")
    assert "skipped 1 files" in open_images(f"{tmp_path}/*", "none").notes[0]


def test_several_names_in_one_call(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    makers = (flat, classes, KINDS["list of paths"][0], table, shards)
    names = [make(tmp_path / str(number)) for number, make in enumerate(makers)]
    code, out, err = call(capsys, "predict", weights, *names, "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 6 + 7 + 5 + 6 + 6
    assert len(open_images(names, "optional").every()) == 30


@pytest.mark.parametrize("names", [("Train", "Val", "test"), ("val", "test")])
def test_flat_splits_are_no_classes_at_any_door_and_the_advice_works(
    names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kaggle"
    for place, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(8):
            (root / name / f"{number}.png").write_bytes(png(8 * place + number))
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=2, image_size=16)
    weights = str(vitlab.save(model, tmp_path / "weights"))
    small = ["--steps", "1", "--batch", "4", "--workers", "0", "--report", "no"]
    learning = {
        "train": ["--model", model.config.name, "--image-size", "16", *small],
        "finetune": ["--from", weights, *small],
        "sweep": ["--model", model.config.name, "--image-size", "16", *small, "--sweep", "1e-3"],
    }

    def every(data: Path, out: str) -> list[tuple[int, str]]:
        lines = [
            [name.replace("sweep", "train"), str(data), *more, "--out", str(tmp_path / out / name)]
            for name, more in learning.items()
        ]
        lines += [["evaluate", weights, str(data), "--workers", "0"]]
        lines += [["fewshot", weights, str(data), "--shots", "1", "--workers", "0"]]
        found = [call(capsys, *line) for line in lines]
        return [(code, err) for code, _, err in found]

    for code, err in every(root, "flat"):
        assert code == 2
        said = err.splitlines()[-1]  # a run's title is before it
        assert "which are names of splits, not of classes: put the images of each class" in said
    if names[0] == "val":
        return
    rows = [f"{file},{'ab'[int(file.stem) % 2]},{file.parent.name.lower()}"
            for file in sorted(root.rglob("*.png"))]  # fmt: skip
    (root / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    assert [code for code, _ in every(root / "list.csv", "listed")] == [0] * 5
    for file in sorted(root.rglob("*.png")):
        (folder := file.parent / "ab"[int(file.stem) % 2]).mkdir(exist_ok=True)
        file.rename(folder / file.name)
    (root / "list.csv").unlink()
    assert [code for code, _ in every(root, "folders")] == [0] * 5
