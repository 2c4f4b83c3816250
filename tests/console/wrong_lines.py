"""Command lines that are wrong in some way, and odd data and weights, all made from a seed."""

import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import vitlab
from conftest import BRIEF, photo, photo_folder
from vitlab.command_table import COMMANDS, command_named
from vitlab.console.leaves import Leaf, all_leaves
from vitlab.runs.run_folder import RunFolder

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/8"
VALID = {
    "train": ["train", "photos", "--model", TINY, "--steps", "2", "--workers", "0", "--out", "o1"],
    "pretrain": ["pretrain", "photos", "--task", "masked-patch", "--model", TINY, "--steps", "2",
                 "--batch", "4", "--workers", "0", "--out", "o11"],
    "finetune": ["finetune", "photos", "--from", "model", "--steps", "2", "--workers", "0",
                 "--out", "o2"],
    "evaluate": ["evaluate", "model", "photos", "--workers", "0"],
    "compare": ["compare", "run", "run-2"],
    "predict": ["predict", "model", "photos/red/000.png"],
    "measure": ["measure", TINY],
    "models": ["models"],
    "recipes": ["recipes"],
    "completion": ["completion", "bash"],
    "delta": ["delta", "model", "model", "--out", "o3.safetensors"],
    "duplicates": ["duplicates", "photos", "--workers", "0"],
    "embed": ["embed", "model", "photos", "--workers", "0", "--out", "o4.parquet"],
    "export": ["export", "model", "--to", "timm", "--out", "o5"],
    # an image that is not there and one option without its value: it ends, whatever else is wrong
    "explore": ["explore", "model", "nowhere.png", "--port"],
    "fewshot": ["fewshot", "model", "photos", "--shots", "1", "--cache", "no", "--workers", "0"],
    "inspect": ["inspect", "model", "photos/red/000.png", "--out", "o10"],
    "load-check": ["load-check", "model"],
    "probe": ["probe", "photos", "--from", "model", "--workers", "0", "--cache", "no", "--out",
              "o12"],
    "prepare": ["prepare", "photos", "o6", "--workers", "0"],
    "push": ["push", "model", "user/name"],
    "search": ["search", "photos.parquet", "photos/red/000.png"],
    # an address that is nobody's, and a file that is no token: it ends, whatever else is wrong
    "serve": ["serve", "model", "--host", "192.0.2.1", "--token-file", "list.csv"],
    "runs": ["runs", "run"],
    "soup": ["soup", "model", "model", "--out", "o7"],
    "study": ["study", "lr", "--data", "photos", "--model", TINY, "--lr-steps", "20", "--workers",
              "0", "--out", "o8"],
    "vtab": ["vtab", "model", "--data", "photos", "--out", "o9", "--workers", "0"],
}  # fmt: skip
DATA = ("photos", "list.csv", "run", "model")  # arguments that odd data may stand for
WEIGHTS = ("model",)
VALUES = (
    "-1", "0", "1", "2", "3.5", "-0.5", "nan", "inf", "-inf", "1e400", "1e-320", "9" * 30, "50%",
    "200%", "-5%", "%", "", " ", "None", "true", "off", "x", "é", "日本", "\x1b[31m", "a\nb", "\0",
    "\udce9", "x" * 5000, "{", "[1, 2]", "--", "-", "../..", "/dev/null", "/dev/zero", "/", "~",
    "~nobody/x", "user/name", "https://[", "s3://", "digits", "vtab:", "vtab:photos/cifar",
    "ViT-B/16", "ViT-B/0", "ViT-X/16", "R50+ViT-B/", "ViT(width=16)/8", "ViT(depth=9999999)/16",
    "BiT-R50x1", "auto", "cuda", "cpu:7", "1/0", "2/5", "5/2", "16x16", "16,16", "0.9,0.99",
)  # fmt: skip
PIECES = ("*", "{0..9}", "{a,b", "[", "?", "::", "%s", "$HOME", "; ls", "'", '"', "\\")


def make_world(root: Path) -> None:
    """Write good data and weights, and every kind of bad ones, into a folder."""
    photo_folder(root / "photos", {"blue": 6, "green": 6, "red": 6}, 32, 32)
    model = vitlab.create(TINY, 3, 32, generator=torch.Generator().manual_seed(0))
    vitlab.save(model, root / "model")
    for name in ("run", "run-2"):
        recipe = vitlab.recipe("small", data="photos", model=TINY)
        RunFolder(root / name).start(
            recipe, vitlab.Host(effort=BRIEF), "vitlab train", fingerprint=""
        )
    _odd_folders(root)
    _odd_lists(root)
    _odd_files(root)
    _odd_weights(root)


def _odd_folders(root: Path) -> None:
    photo_folder(root / "one-class", {"only": 3}, 32, 32)
    photo_folder(root / "few", {"a": 1, "b": 1}, 32, 32)
    photo_folder(root / "odd é\n\x1b[31m", {"a\tb": 3, "\udce9": 3, "c": 3}, 32, 32)
    photo_folder(root / "split" / "train", {"a": 3, "b": 3}, 32, 32)
    photo_folder(root / "split" / "test", {"a": 1, "z": 2}, 32, 32)
    photo_folder(root / "sizes", {"a": 3, "b": 3}, 1, 200)
    (root / "empty").mkdir()
    for name in ("a", "b"):
        folder = root / "broken" / name
        folder.mkdir(parents=True)
        (folder / "zero.png").touch()
        (folder / "text.jpg").write_text("no image")
        (folder / "cut.png").write_bytes((root / "photos/red/000.png").read_bytes()[:60])
        (root / "words" / name).mkdir(parents=True)
        (root / "words" / name / "readme.txt").write_text("hello")
        (root / "no-images" / name).mkdir(parents=True)
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "loop").symlink_to(root / "loop")
    (root / "folder.csv").mkdir()
    (root / "folder.parquet").mkdir()


def _odd_lists(root: Path) -> None:
    good = [f"photos/{name}/{n:03d}.png,{name}" for name in ("red", "blue") for n in range(5)]
    lists = {
        "list.csv": "\n".join(["path,label", *good]),
        "empty.csv": "",
        "head.csv": "path,label\n",
        "missing.csv": "path,label\nnope.png,a\nnope2.png,b\n",
        "columns.csv": "x,y\n1,2\n3,4\n",
        "ragged.csv": "path,label\nphotos/red/000.png\nphotos/red/001.png,a,b,c\n",
        "long.csv": "path,label\n" + "x" * 6000 + ",a\n" + "y" * 200_000 + ",b\n",
        "outside.csv": "path,label\n/etc/passwd,a\n../../../etc/hosts,b\n",
        "null.csv": "path,label\n\0,\0\n",
        "bad.jsonl": '{"path": "photos/red/000.png", "label": ',
        "types.jsonl": '[1]\n3\nnull\n"x"\n',
        "number.jsonl": '{"path": "photos/red/000.png", "label": ' + "9" * 10_000 + "}",
        "nested.jsonl": "[" * 100_000,
        "nan.jsonl": '{"path": "photos/red/000.png", "label": NaN}\n',
    }
    for name, text in lists.items():
        (root / name).write_text(text)
    (root / "binary.csv").write_bytes(bytes(range(256)) * 8)


def _odd_files(root: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 3000, np.uint8).tobytes()
    for name in ("noise.tar", "noise.parquet", "noise.png", "noise.zip", "noise"):
        (root / name).write_bytes(noise)
    (root / "empty.parquet").touch()
    (root / "empty.tar").touch()
    with tarfile.open(root / "names.tar", "w") as tar:
        tar.add(root / "list.csv", "a.txt")
    photo(0, 32, 32).save(root / "good.png")


def _odd_weights(root: Path) -> None:
    for name in ("w.safetensors", "w.npz", "w.pth", "w.bin", "w.msgpack"):
        (root / f"noise-{name}").write_bytes(b"\x80\x02\x93NUMPY" + bytes(range(256)) * 9)
        (root / f"empty-{name}").touch()
    torch.save({"a": torch.zeros(3)}, root / "other.pth")
    torch.save([1, 2], root / "list.pth")
    np.savez(root / "other.npz", a=np.zeros(3))
    config = json.loads((root / "model" / "config.json").read_text())
    changes = {"depth": 10**9, "classes": -1, "width": "x", "mean": [float("nan")], "labels": 3}
    for key, value in changes.items():
        folder = root / f"config-{key}"
        folder.mkdir()
        changed = {name: dict(each) if isinstance(each, dict) else each
                   for name, each in config.items()}  # fmt: skip
        inner = next((each for each in changed.values() if isinstance(each, dict) and key in each),
                     changed)  # fmt: skip
        inner[key] = value
        (folder / "config.json").write_text(json.dumps(changed))
        (folder / "model.safetensors").write_bytes(
            (root / "model" / "model.safetensors").read_bytes()
        )
    (root / "config-only").mkdir()
    (root / "config-only" / "config.json").write_text("{}")
    (root / "config-list").mkdir()
    (root / "config-list" / "config.json").write_text("[]")


def options_of_command(name: str) -> list[Leaf]:
    """Every option of a command."""
    return list(all_leaves(command_named(name).kind))


def wrong_lines(root: Path, seed: int) -> Iterator[list[str]]:
    """Yield command lines without end, each with one to three things wrong or odd."""
    chance = random.Random(seed)
    inside = sorted(each.name for each in root.iterdir())
    names = list(COMMANDS)
    leaves = {name: options_of_command(name) for name in names}
    while True:
        name = chance.choice(names)
        words = list(VALID[name])
        for _ in range(chance.choice((1, 1, 1, 2))):
            words = chance.choice(MUTATIONS)(chance, words or [name], leaves[name], inside)
        yield words


def _value(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Give any option any value."""
    leaf = chance.choice(leaves)
    values = [chance.choice(VALUES) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    return [*words, _spelled(leaf), *values]


def _flag(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Give any option without a value, or its negation."""
    word = _spelled(chance.choice(leaves))
    return [*words, chance.choice((word, word.replace("--", "--no-", 1), word + "="))]


def _typo(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Mistype a word."""
    place = chance.randrange(len(words))
    word = words[place]
    at = chance.randrange(len(word) + 1)
    changed = chance.choice((
        word[:at] + word[at + 1 :],
        word[:at] + chance.choice("xq_-9é") + word[at:],
        word[:at] + word[at:].swapcase(),
        word + chance.choice(PIECES),
    ))  # fmt: skip
    return [*words[:place], changed, *words[place + 1 :]]


def _odd(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Name odd data or weights in place of good ones."""
    places = [place for place, word in enumerate(words) if word in DATA]
    if not places:
        return [*words, chance.choice(inside)]
    place = chance.choice(places)
    return [*words[:place], chance.choice(inside), *words[place + 1 :]]


def _drop(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Leave a word out."""
    place = chance.randrange(len(words))
    return [*words[:place], *words[place + 1 :]]


def _extra(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Put another word anywhere."""
    place = chance.randrange(len(words) + 1)
    return [*words[:place], chance.choice(VALUES + PIECES), *words[place:]]


def _twice(chance: random.Random, words: list[str], leaves: list[Leaf], inside: list[str]) -> list:
    """Repeat a word, or write into what exists."""
    if "--out" in words and chance.random() < 0.5:
        place = words.index("--out") + 1
        return [*words[:place], chance.choice(inside), *words[place + 1 :]]
    place = chance.randrange(len(words))
    return [*words[:place], words[place], *words[place:]]


MUTATIONS = (_value, _value, _value, _flag, _typo, _odd, _odd, _odd, _odd, _drop, _extra, _twice)


def _spelled(leaf: Leaf) -> str:
    return f"--{leaf.word.replace('_', '-')}"
