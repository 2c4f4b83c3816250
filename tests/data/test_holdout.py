"""Held out by content: the same images whatever comes and goes; figures of unseen ones alone."""

import copy
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binom

import vitlab
from conftest import BRIEF
from vitlab.data.holdout import apply_moves, copies_together, fold_of, hash_uniform, hold_out
from vitlab.data.identities import identities
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.memory import Arrays
from vitlab.errors import DataError, RunError, WeightsError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.probing import probe
from vitlab.evaluation.probes.searching import folds_of
from vitlab.evaluation.run_predictions import reopened
from vitlab.models.model import Model
from vitlab.models.seen import NOTHING, marked
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.transfer.multitask import MultiTask

TINY = {"model": "ViT(width=32,depth=1,heads=2,mlp=64)/4", "image_size": 12, "steps": 60,
        "batch": 32, "lr": 1e-2, "area": 1.0, "flip": False, "ema": 0.0,
        "label_smoothing": 0.0}  # fmt: skip
HOST = Host(workers=0, report="no", device="cpu", check_duplicates="no", effort=BRIEF)


def noise(folder: Path, count: int = 90, classes: str = "abc", seed: int = 0) -> Path:
    """Noise under labels at random: nothing can be learned but the images themselves."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        place = folder / classes[generator.integers(len(classes))]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number:03d}.png")
    return folder


def names(source: Images) -> set[str]:
    return {Path(source.name(number)).name for number in range(len(source))}


def test_images_stay_on_their_side_when_others_come_and_go(tmp_path: Path) -> None:
    folder = noise(tmp_path / "noise", 120)
    before = open_to_learn(str(folder))
    assert 12 <= len(before.test) <= 36  # a fifth of 120, or so
    noise(folder, 30, seed=1)  # replaces the first 30 images, and may add them to other classes
    shutil.move(next((folder / "a").glob("1*.png")), folder / "b" / "moved.png")
    (folder / "c").rename(folder / "z")
    after = open_to_learn(str(folder))
    ids = [set(identities(part).tolist()) for part in (before.train, after.test)]
    assert not ids[0] & ids[1]
    ids = [set(identities(part).tolist()) for part in (before.test, after.train)]
    assert not ids[0] & ids[1]


def test_copies_are_on_one_side_and_a_file_is_known_in_any_container(tmp_path: Path) -> None:
    folder = noise(tmp_path / "noise", 60)
    for image in list(folder.rglob("*.png")):
        shutil.copy(image, image.with_name(f"copy-{image.name}"))
    splits = open_to_learn(str(folder))
    test = names(splits.test)
    assert {each.removeprefix("copy-") for each in test} == {x for x in test if "copy" not in x}
    large = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    Image.fromarray(large).save(file := tmp_path / "large.png")  # identified by parts of it
    stored = file.read_bytes()
    assert len(stored) > 3 * 8192
    one, other = (open_images(data, "none").every() for data in (str(file), [stored]))
    assert identities(one).tolist() == identities(other).tolist()


def test_shares_are_near_what_is_asked_for() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4000, 4, 4, 1), np.uint8)
    splits = open_to_learn((images, [n % 4 for n in range(4000)]), 0.2)
    assert 720 < len(splits.test) < 880
    large = Images.of(
        Arrays(images[:500].reshape(1, 100, 80, 1).repeat(4, 3)), splits.test.target, ()
    )
    assert identities(large).tolist() == [1937754905564190418]  # a split of years ago is the same
    assert hash_uniform(large, "test").tolist() == [0.3803874844632462]
    taken = hash_uniform(splits.whole, "test")
    assert abs(np.corrcoef(taken, hash_uniform(splits.whole, "folds"))[0, 1]) < 0.05


def test_a_fold_without_an_image_is_refused() -> None:
    pixels = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4, 1)
    splits = open_to_learn((pixels, [0, 1] * 6))
    found, refused = 0, []
    for part in range(1, 13):
        try:
            found += len(fold_of(splits, f"{part}/12").test)
        except DataError as error:
            refused.append(str(error))
    assert found == 12
    assert refused
    assert all(each.endswith("has 0 of 12 images: use fewer folds") for each in refused)
    with pytest.raises(DataError, match="12 images cannot be dealt out to 13 folds"):
        fold_of(splits, "1/13")


def test_folds_of_a_probe_keep_groups_together() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 4, 4, 1), np.uint8)
    labels = np.arange(120) % 3
    plain = open_to_learn((pixels, labels.tolist())).whole
    rows = np.flatnonzero(np.arange(120) % 5)  # of a split
    patient = np.arange(120) // 4
    dealt = folds_of(plain.in_groups(patient), rows, labels[rows], 5)
    of_patient = {(int(p), int(f)) for p, f in zip(patient[rows], dealt, strict=True)}
    assert len(of_patient) == 30
    assert len({*dealt.tolist()}) == 5
    assert max(np.bincount(folds_of(plain, rows, labels[rows], 5))) <= 21  # of 96, alike
    for groups, kept in ((np.zeros(120), rows), (patient, rows[:1])):
        with pytest.raises(DataError, match="cannot be dealt out to folds: give at least"):
            folds_of(plain.in_groups(groups), kept, labels[kept], 5)


def test_groups_are_never_on_both_sides(tmp_path: Path) -> None:
    folder = noise(tmp_path / "noise", 80)
    files = sorted(folder.rglob("*.png"))
    rows = [f"{f.relative_to(tmp_path)},{f.parent.name},p{n % 16}" for n, f in enumerate(files)]
    (tmp_path / "list.csv").write_text("path,label,patient\n" + "\n".join(rows))
    columns = Columns(label_column="label", group_column="patient")
    splits = open_to_learn(str(tmp_path / "list.csv"), options=columns)
    train, test = splits.train.group, splits.test.group
    assert not set(train.tolist()) & set(test.tolist())
    assert len(splits.test) % 5 == 0
    changed = copies_together(splits, [(0, len(splits.train))])  # of two groups, one on each side
    both = {part.group[0] for part in (splits.train, splits.test)}
    after = apply_moves(splits, changed)
    sides = [{*part.group.tolist()} for part in (after.train, after.test)]
    assert not sides[0] & sides[1]
    assert both <= sides[0] or both <= sides[1]
    assert len(after.train) + len(after.test) == 80
    with pytest.raises(DataError, match="has no columns, so that group_column means nothing"):
        open_to_learn(str(folder), options=columns)


def test_groups_and_copies_go_together_where_one_has_to_be_taken_or_left() -> None:
    """Of few images, chance often takes none, or all, of a class."""
    for seed in range(20):
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 4, 4, 1), np.uint8).repeat(2, 0)
        whole = Images.of(Arrays(pixels), SingleLabels(np.arange(12) // 6), ("a", "b"))
        for share in (0.2, 0.8):
            splits = hold_out(whole, share)
            assert not set(identities(splits.train)) & set(identities(splits.test))
            assert min(splits.train.target.counts(2) + splits.test.target.counts(2)) > 0
        splits = hold_out(whole.in_groups(np.arange(12) // 4), 0.2)
        train, test = (each.group for each in (splits.train, splits.test))
        assert not set(train.tolist()) & set(test.tolist())
        assert len(test) in (4, 8)
        rare = Images.of(Arrays(pixels), SingleLabels(np.arange(12) // 11), ("a", "b"))
        assert hold_out(rare, 0.6).train.target.counts(2)[1] == 1


@pytest.fixture(scope="module")
def memorized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Noise, and a run that knows its training part by heart."""
    root = tmp_path_factory.mktemp("memorized")
    folder = noise(root / "noise")
    run = vitlab.train(vitlab.recipe("small", str(folder), **TINY), root / "run", host=HOST)
    whole = vitlab.evaluate(run.model, str(folder), split="train")
    assert whole["accuracy"] > 0.9
    assert whole["learned_from"] == whole["images"]
    assert "were learned from" in whole["notes"][0]
    return folder, run


def by_chance(figures: dict[str, Any]) -> bool:
    """Whether guessing among three classes is right as often once in a thousand times."""
    count = figures["images"]
    return bool(binom.sf(round(figures["accuracy"] * count) - 1, count, 1 / 3) > 1e-3)


def test_no_figure_of_noise_is_above_chance(memorized, tmp_path) -> None:
    """Add an image; a fold."""
    folder, run = memorized
    folder = Path(shutil.copytree(folder, tmp_path / "noise"))
    Image.fromarray(np.full((12, 12, 3), 7, np.uint8)).save(folder / "a" / "aaa.png")
    added = vitlab.evaluate(run.model, str(folder))
    assert added["images"] == run.metrics["images"] + 1
    assert by_chance(added)
    assert "left out" in added["notes"][0]
    recipes = {
        "again": vitlab.recipe("small", str(folder), **TINY | {"steps": 1}),
        "fold": vitlab.recipe("small", str(folder), **TINY | {"steps": 2}, fold="1/2"),
    }
    for name, recipe in recipes.items():
        found = vitlab.train(recipe, tmp_path / name, start=run.model, host=HOST)
        assert by_chance(found.metrics), name
        assert set(run.model.seen.tolist()) <= set(found.model.seen.tolist()), name
        left_out = any("test images are left out" in note for note in found.metrics["notes"])
        assert left_out == (name != "again"), name  # the same split has no test image of before


def test_what_was_seen_travels_with_the_weights(memorized, tmp_path) -> None:
    folder, run = memorized
    seen = run.model.seen
    assert len(seen) == 90 - run.metrics["images"]
    assert (run.folder / "model" / "seen.npy").stat().st_size == 128 + 8 * len(seen)
    vitlab.save(vitlab.load(run.folder), tmp_path / "saved")
    base = vitlab.create(run.model.config.name, classes=3, image_size=12)
    other = vitlab.load(run.folder)
    vitlab.delta(other, base).save(tmp_path / "delta.safetensors")
    whole = {*of_all(run.model, folder).seen.tolist()}
    for name, more in {
        "fold": {"fold": "1/2"},
        "taught": {"teacher": str(tmp_path / "saved")},
    }.items():
        recipe = vitlab.recipe("small", str(folder), **TINY | {"steps": 1}, **more)
        made = vitlab.train(recipe, tmp_path / name, host=HOST).model
        if name == "fold":
            assert vitlab.soup([made, other]).seen.tolist() == np.union1d(made.seen, seen).tolist()
            assert {*made.seen.tolist()} < whole
        else:
            assert {*made.seen.tolist()} >= {*seen.tolist()}
    models = {
        "a file": vitlab.load(run.folder / "model" / "model.safetensors"),
        "a task": MultiTask(base, {"noise": other}).body("noise"),
        "saved": vitlab.load(tmp_path / "saved"),
        "delta": vitlab.load(tmp_path / "delta.safetensors", base=base),
        "resized": vitlab.load(run.folder, image_size=24),
    }
    for name, model in models.items():
        assert model.seen.tolist() == seen.tolist(), name


def test_an_adapter_has_what_its_base_has_seen(memorized, tmp_path) -> None:
    folder, run = memorized
    short = {"steps": 1, "batch": 32, "fold": "1/2"}
    tuned = vitlab.finetune(str(folder), run.folder, tmp_path / "run", "lora", host=HOST, **short)
    assert len(tuned.model.seen) > len(run.model.seen)
    vitlab.save(tuned.model, tmp_path / "adapter", to="peft", base=run.folder)
    with pytest.raises(WeightsError, match=r"without its base .*run is another model\)"):
        vitlab.load(tmp_path / "adapter")  # the run beside it has the name of the base
    adapted = partial(vitlab.load, tmp_path / "adapter", base=run.folder)
    assert adapted().seen.tolist() == tuned.model.seen.tolist()
    (tmp_path / "adapter" / "seen.npy").unlink()  # peft itself writes none
    assert adapted().seen.tolist() == run.model.seen.tolist()


def test_folds_from_weights_that_learned_from_the_data_say_so(memorized, tmp_path) -> None:
    folder, run = memorized
    recipe = vitlab.recipe("finetune", str(folder), weights=str(run.folder), steps=1, batch=32)
    found = vitlab.cross_validate(recipe, tmp_path / "folds", 2, host=HOST)
    assert found["images"] == run.metrics["images"], "images that no weights learned from"
    assert "learned_from" not in found
    assert by_chance(found)
    vitlab.save(of_all(run.model, folder), tmp_path / "all")
    recipe = recipe.changed(weights=str(tmp_path / "all"))
    found = vitlab.cross_validate(recipe, tmp_path / "again", 2, host=HOST)
    assert found["learned_from"] == found["images"] == 90
    assert "have learned from 90 of 90 test images" in found["notes"][0]
    assert sum(each["learned_from"] for each in found["runs"]) == 90


def of_all(model: Model, folder: Path) -> Model:
    """The same model as if it had learned from all images."""
    result = copy.deepcopy(model)
    result.seen = marked(identities(open_images(str(folder)).every()), labeled=True)
    return result


def test_probes_leave_out_what_was_learned_from(memorized, tmp_path, capsys) -> None:
    folder, run = memorized
    files = sorted(folder.rglob("*.png"), key=lambda file: file.name)
    rows = [f"{f},{f.parent.name},{('train', 'test')[n % 2]}" for n, f in enumerate(files)]
    (folder / "halves.csv").write_text("path,label,split\n" + "\n".join(rows))
    held_out = names(open_to_learn(str(folder)).test) & {file.name for file in files[1::2]}
    assert 0 < len(held_out) < 45
    how = Probing(shots=(2,), seeds=1, cache="no"), Compute(device="cpu", workers=0)
    found = probe(run.model, str(folder / "halves.csv"), *how)
    assert found["images"] == len(held_out)
    assert any(note.startswith("left out") for note in found["notes"])
    found = probe(of_all(run.model, folder), str(folder / "halves.csv"), *how)
    assert found["learned_from"] == found["images"] == 45
    said = "45 of 45 images were learned from: figures are too good"
    assert any(said in note for note in found["notes"])
    recipe = vitlab.recipe("small", str(folder), **TINY | {"steps": 1})
    host = replace(HOST, probe=str(folder / "halves.csv"), probe_by="knn")
    vitlab.train(recipe, tmp_path / "run", host=host)
    assert "halves.csv: left out" in capsys.readouterr().err


def test_a_greedy_soup_is_chosen_by_unseen_images(memorized, tmp_path, capsys) -> None:
    folder, run = memorized
    other = copy.deepcopy(run.model)
    with torch.no_grad():
        next(other.parameters()).mul_(1.01)
    other.seen, other.provenance = NOTHING, {}
    chosen = vitlab.soup([run.model, other], greedy=str(folder)).provenance["soup"]
    assert by_chance({"accuracy": chosen["accuracy"], "images": run.metrics["images"]})
    assert "learned_from" not in chosen
    other.seen = of_all(run.model, folder).seen
    chosen = vitlab.soup([run.model, other], greedy=str(folder)).provenance["soup"]
    assert chosen["learned_from"] == 90
    assert "90 images that the models learned from, since there are no" in capsys.readouterr().err


def test_what_was_seen_without_labels_is_said_apart(memorized, tmp_path) -> None:
    folder, run = memorized
    model = vitlab.create(run.model.config.name, classes=3, image_size=12)
    model.seen = marked(of_all(run.model, folder).seen, labeled=False)
    recipe = vitlab.recipe("small", str(folder), **TINY | {"steps": 1})
    found = vitlab.train(recipe, tmp_path / "run", start=model, host=HOST)
    count = run.metrics["images"]
    assert found.metrics["images"] == count
    assert "learned_from" not in found.metrics
    apart = f"{count} of {count} test images were in the training without labels of the weights"
    assert any(note.startswith(apart) for note in found.metrics["notes"])
    assert vitlab.evaluate(found.model, str(folder))["notes"] == [
        f"{count} of {count} images were in its training without labels"
    ]


def test_resume_notices_one_replaced_image(tmp_path: Path) -> None:
    data = tmp_path / "noise"
    folder = noise(data / "train")
    noise(data / "test", 20, seed=3)
    recipe = vitlab.recipe("small", str(data), **TINY | {"steps": 1})
    vitlab.train(recipe, tmp_path / "run", host=HOST)
    old = sorted(folder.rglob("*.png"))[5]  # not one of the eight that are read in any case
    pixels = np.random.default_rng(9).integers(0, 256, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).save(old)
    said = r"noise has changed since .*run was started: choose another"
    with pytest.raises(RunError, match=said):
        vitlab.train(recipe, tmp_path / "run", host=HOST, resume=True)


@pytest.mark.parametrize("to", ["vitlab", "timm", "transformers", "google"])
def test_every_format_that_is_saved_keeps_what_was_seen(to: str, tmp_path: Path) -> None:
    name = "ViT(width=64,depth=1,heads=1,mlp=64)/16"
    model = vitlab.create(name, classes=3, image_size=32, gelu="tanh", fit="squash")
    model.seen = marked(np.arange(2**33, 2**33 + 20, 2, dtype=np.uint64), labeled=True)
    vitlab.save(model, tmp_path / "model", to=to)
    assert vitlab.load(tmp_path / "model").seen.tolist() == model.seen.tolist()
    model.seen = NOTHING
    vitlab.save(model, tmp_path / "model", to=to)
    assert not len(vitlab.load(tmp_path / "model").seen)


def bursts(folder: Path, scenes: int, shots: int) -> Path:
    """Photographs of scenes, several of each that are almost the same, in different bytes."""
    for scene in range(scenes):
        place = folder / "ab"[scene % 2]
        place.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(scene)
        coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
        picture = coarse.resize((48, 48), Image.Resampling.BICUBIC)
        for shot in range(shots):
            picture.save(place / f"{scene:02d}-{shot}.jpg", quality=95 - 3 * shot)
    return folder


def test_near_duplicates_are_on_one_side(tmp_path: Path) -> None:
    folder, host = bursts(tmp_path / "photos", 24, 4), replace(HOST, check_duplicates="yes")
    recipe = vitlab.recipe("small", str(folder), **TINY | {"steps": 2, "image_size": 16})
    run = vitlab.train(recipe, tmp_path / "run", host=host)
    before = open_to_learn(str(folder))
    assert {n[:2] for n in names(before.train)} & {n[:2] for n in names(before.test)}
    found = reopened(RunFolder(run.folder))
    sides = [{name[:2] for name in names(part)} for part in (found.train, found.test)]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {f"{scene:02d}" for scene in range(24)}
    assert len(found.train) + len(found.test) == 96
    assert 1 <= len(sides[1]) <= 10  # a fifth of the scenes, or so
    assert run.metrics["images"] == len(found.test)
    assert any("moved to the split of their near" in note for note in run.metrics["notes"])
    again = vitlab.evaluate(vitlab.load(run.folder), str(folder))
    assert (again["images"], again["nll"]) == (len(found.test), pytest.approx(run.metrics["nll"]))
    tested: list[set[str]] = []
    for part in (1, 2):
        fold = vitlab.train(recipe.changed(fold=f"{part}/2"), tmp_path / f"fold-{part}", host=host)
        tested.append(names(reopened(RunFolder(fold.folder)).test))
    assert len(set[str]().union(*tested)) == sum(map(len, tested)) == 96
    scenes = [{name[:2] for name in own} for own in tested]
    assert sum(map(len, scenes)) == 24
