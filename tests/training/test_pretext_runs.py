"""Runs of every pretext task: killed and resumed, on two processes, and refused.

A task that is added to `TASKS` is among them, with the options that make it small.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitlab
from conftest import (
    BRIEF,
    call,
    fewer_scenes,
    photo,
    photo_folder,
)
from distributed.ranks import on_ranks
from made_scenes import scene_folder
from steps import first_peaks, killed_before
from training.kept import journal
from vitlab.commands.train import ANNOTATED
from vitlab.objectives.pretext_tasks import TASKS
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import observer

VIT = "ViT(width=16,depth=1,heads=2,mlp=32)/2"
TINY: dict[str, Any] = {  # SGD, whose steps would tell a gradient from twice the gradient
    "model": VIT, "steps": 3, "batch": 8, "warmup": 0, "test_every": 0.01, "precision": "fp32",
    "optimizer": "sgd", "lr": 0.05, "ema": 0.5,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "beit": {"mask_ratio": 0.4, "min_block": 2, "drop_path": 0.0, "mean": 0.5, "std": 0.5},
    "mae": {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2, "mean": 0.5, "std": 0.5},
    "dino": {"prototypes": 16, "head_width": 16, "bottleneck": 8, "local_crops": 2,
             "freeze_last": 0.05, "registers": 1, "drop_path": 0.0, "mean": 0.5,
             "std": 0.5},
    "lejepa": {"embedding": 8, "head_width": 16, "local_crops": 2, "drop_path": 0.0, "mean": 0.5,
               "std": 0.5, "slices": 8,
               "regularizer_weight": 0.0},  # it looks at the images of one process
    "tokenizer": {"model": "dVAE(codes=16,code_width=8,width=8)/2"},
    "detect": {"model": VIT[:-1] + "8", "image_size": 48, "query_blocks": 1, "object_queries": 9},
    "regress": {"model": VIT[:-1] + "8", "image_size": 48, "targets": "digits,sum"},
    "segment": {"model": ""},
    "segment-queries": {"model": "", "mask_queries": 5, "query_blocks": 1},
}  # fmt: skip
KINDS = [*TASKS, "segment-queries"]
WEIGHTS = "model/model.safetensors"
HOST = Host(workers=0, checkpoint_every=0, device="cpu", effort=BRIEF)
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of one step."""
    recipe = vitlab.recipe("tokenizer", "digits", **TINY | OWN["tokenizer"] | {"steps": 1})
    return vitlab.train(recipe, tmp_path_factory.mktemp("codes") / "run", host=HOST).folder


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """Few scenes to detect in, and few images to measure on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observer, "MOST", 16)
        yield from fewer_scenes(patch)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of pixels that was fitted to scenes, which lie beside it."""
    place = tmp_path_factory.mktemp("fitted")
    model = vitlab.create(VIT[:-1] + "8", classes=0, image_size=32)
    scenes = str(scene_folder(place / "scenes", 40))
    return vitlab.probe(scenes, model, place / "run", task="segment", by="ridge", host=HOST).folder


@pytest.fixture(scope="module")
def train(codes: Path, fitted: Path, few: None) -> Train:
    """Returns what trains a task."""

    def learn(
        folder: Path, task: str, resume: bool = False, host: Host = HOST, **chosen: Any
    ) -> Path:
        own, task = OWN.get(task, {}), task.removesuffix("-queries")
        guide = {"beit": {"tokenizer": str(codes)}, "segment": {"weights": str(fitted)}}
        chosen = TINY | own | guide.get(task, {}) | chosen
        data = "digit-scenes" if task in ANNOTATED else "digits"
        data = str(fitted.parent / "scenes") if task == "segment" else data
        recipe = vitlab.recipe(task, data, **chosen)
        return vitlab.train(recipe, folder, resume=resume, host=host).folder

    return learn


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a run of a task that nothing happened to."""
    folder, found = tmp_path_factory.mktemp("whole"), dict[str, Path]()

    def run(task: str) -> Path:
        if task not in found:
            found[task] = train(folder / task, task)
        return found[task]

    return run


def outcome(run: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Every tensor that is left, of the task too, and the journal but for times."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    files = [run / WEIGHTS, *newest.rglob("*.safetensors")]
    tensors = {name: t for file in files for name, t in load_file(file).items()}
    return {name: t.flatten().numpy().tobytes() for name, t in tensors.items()}, journal(run)


@pytest.mark.parametrize("task", KINDS)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    task: str, train: Train, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    run, wanted = tmp_path / "run", outcome(whole(task))
    with killed_before(2), pytest.raises(KeyboardInterrupt):
        train(run, task)
    assert not (run / "model").exists()
    train(run, task, resume=True)
    assert outcome(run) == wanted
    kept = load_file(run / WEIGHTS)
    model = vitlab.load(run)
    alone = vitlab.save(model, tmp_path / "alone") / "model.safetensors"
    assert kept.keys() == load_file(alone).keys()  # nothing of what learned beside it
    assert model.config.classes == 0
    averaged = any(name.startswith("head-average.") for name in wanted[0])
    assert averaged == task.startswith(ANNOTATED)  # what answers with the model is
    if task == "dino":  # the teacher is saved
        state = wanted[0]
        for name, tensor in model.state_dict().items():
            assert state[f"task.teacher.{name}"] == tensor.flatten().numpy().tobytes()


def test_a_collapsed_run_is_told_of(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", "dino", steps=1, teacher_temperature=(50.0, 50.0))  # nearly uniform
    assert "the teacher has collapsed to uniform answers" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["dino", "mae"])
def test_recomputed_activations_give_the_same_bits_in_less_memory(
    task: str, train: Train, tmp_path: Path
) -> None:
    how = {"model": VIT.replace("depth=1", "depth=5"), "steps": 1, "drop_path": 0.2}
    with first_peaks() as peaks:
        for on in (False, True):
            host = replace(HOST, checkpoint_activations=on)
            train(tmp_path / str(on), task, host=host, **how)
    kept, again = (load_file(tmp_path / each / WEIGHTS) for each in ("False", "True"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in kept.items())
    assert peaks[1] < 0.7 * peaks[0]


@pytest.fixture(scope="module")
def twice(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs of every task, each by two processes."""
    place = tmp_path_factory.mktemp("two")
    for said in on_ranks(2, lambda: [str(train(place / task, task)) for task in KINDS], place):
        assert "value" in said, said.get("trace")
    return place


@pytest.mark.parametrize("task", KINDS)
def test_two_processes_learn_as_one(task: str, whole: Callable[[str], Path], twice: Path) -> None:
    alone, two = whole(task), twice / task
    for one, other in zip(journal(alone), journal(two), strict=True):
        assert (one["kind"], one.get("step")) == (other["kind"], other.get("step"))
        if "loss" in one:
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    found = load_file(two / WEIGHTS)
    for name, tensor in load_file(alone / WEIGHTS).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten photographs without labels, and folders with one image, or with damaged ones."""
    root = tmp_path_factory.mktemp("photos")
    photo_folder(root, {"flat": 10, "one": 1}, 16, 16)
    (root / "flat" / "notes.txt").write_text("x")
    (root / "damaged").mkdir()
    for number in range(4):
        (root / "damaged" / f"{number}.jpg").write_bytes(b"\xff\xd8\xff no more")
    return root


FLAT = "flat --model ViT(width=16,depth=1,heads=2,mlp=32)/4"
WRONG = [
    ("nowhere --task mae", "no such file or folder: nowhere"),
    ("one --task masked-patch", "one has only one image to learn from: give at least 2"),
    ("damaged --task masked-patch --model ViT-Ti/4", "none of 4 images of damaged that were"),
    (f"{FLAT} --task mae --stem conv", "stem=conv"),
    (f"{FLAT} --task beit --tokenizer CODES --mean 0.5 --std 0.5", "is for channels=1, but the mo"),
    (f"{FLAT} --task masked-patch --precision bf16-pure", "task cannot be used with bf16-pure"),
    (f"{FLAT} --task masked-patch --shard", "--shard needs several processes"),
]


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line for line, _ in WRONG])
def test_what_cannot_be_learned_is_said_in_one_line_before_training(
    line: str,
    words: str,
    photos: Path,
    codes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """More of these: tests/objectives/test_refused.py."""
    monkeypatch.chdir(photos)
    line = line.replace("CODES", str(codes))
    before = sorted(photos.rglob("*"))
    code, out, err = call(capsys, "pretrain", *line.split(), "--workers", "0", "--out", "run")
    assert code == 2, err
    assert words in err
    assert err.splitlines()[-1].startswith("vitlab pretrain: ")
    assert sorted(photos.rglob("*")) == before
    assert not out


def test_a_few_photographs_are_enough_and_the_held_out_loss_ends_a_run(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a learning rate of nearly nothing the loss falls no further."""
    monkeypatch.chdir(photos)
    line = f"{FLAT} --task masked-patch --batch 16 --epochs 40 --warmup-steps 0 --lr 1e-30"
    code, out, err = call(
        capsys, "pretrain", *line.split(), "--patience", "2", "--workers", "0", "--json"
    )
    assert code == 0, err
    assert "9 training and 1 held-out images" in err
    assert "task masked-patch: 8.72 k parameters of its own" in err
    assert "batch reduced from 16 to all 9 training images; the learning rate" in err
    assert RunFolder(photos / "runs" / "flat-ViT-4-masked-patch").recipe.batch == 9
    result = json.loads(out)
    run = photos / "runs" / "flat-ViT-4-masked-patch"
    assert result["run"] == str(run.relative_to(photos))
    assert result["held_out"] == 1
    assert result["loss"] > 0
    steps = [line["step"] for line in RunFolder(run).journal.read() if "step" in line]
    assert max(steps) < 36
    assert vitlab.load(run).config.image_size == 16
    code, _, err = call(capsys, "pretrain", *line.split(), "--patience", "2", "--resume")
    assert code == 0, err  # the batch that was made smaller is no other option


def test_hardly_an_image_is_missing_from_the_held_out_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where full passes would leave out a third of them."""
    seen, batches = list[int](), observer.Observer._batches

    def counted(self: observer.Observer, *given: Any) -> Iterator[Any]:
        for batch in batches(self, *given):
            seen.append(len(batch))
            yield batch

    monkeypatch.setattr(observer.Observer, "_batches", counted)
    monkeypatch.setattr(observer, "AT_ONCE", 4)
    images = np.stack([np.asarray(photo(number, 16, 16, number % 3)) for number in range(70)])
    recipe = vitlab.recipe("masked-patch", **TINY | {"model": VIT.replace("/2", "/4"), "steps": 1})
    held = vitlab.train(recipe, tmp_path / "run", data=images, host=HOST).metrics["held_out"]
    assert held % 4 > 1
    assert held - sum(seen) < len(seen) == -(-held // 4)


def test_images_in_memory_need_no_labels_and_are_fine_tuned_with_some(tmp_path: Path) -> None:
    images = np.stack([np.asarray(photo(number, 16, 16, number % 3)) for number in range(24)])
    labels = [str(number % 3) for number in range(24)]
    recipe = vitlab.recipe("masked-patch", **TINY | {"model": VIT.replace("/2", "/4"), "steps": 1})
    few: Any = {"steps": 1, "batch": 8, "head_start": "zero", "host": HOST}
    run = vitlab.train(recipe, tmp_path / "run", data=images, host=HOST)
    assert (run.metrics["images"], run.metrics["held_out"]) == (22, 2)
    tuned = vitlab.finetune((images, labels), run.model, tmp_path / "tuned", **few)
    assert tuned.metrics["images"] == 6
    assert tuned.model.config.classes == 3
