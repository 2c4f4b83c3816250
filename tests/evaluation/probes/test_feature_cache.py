"""Features on the disk: the model's own, computed once, checked, recomputed where damaged."""

import errno
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from distributed.ranks import on_ranks
from vitlab.data.augment.augment import normalize
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.batches import center, load_image
from vitlab.distributed.launch import joined
from vitlab.distributed.world import ALONE
from vitlab.errors import DataError
from vitlab.evaluation.probes import extraction as parts
from vitlab.evaluation.probes.content import key_of
from vitlab.evaluation.probes.extraction import Extraction
from vitlab.evaluation.probes.feature_cache import default_cache, features_of, prune
from vitlab.evaluation.probes.wanted import Pooled

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 8 and parts of 16, so that 60 pictures make four."""
    monkeypatch.setattr(parts, "BATCH", 8)
    monkeypatch.setattr(parts, "ROWS", 16)


def model(**choices: object) -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
    made = vitlab.create(name, **{"classes": 3, "image_size": 8} | choices)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, 0.3)
    return made


def extraction(photos: Path, **how: object) -> Extraction:
    whole = open_to_learn(str(photos)).whole
    return Extraction(how.pop("model", model()), whole, Pooled(), CPU, workers=0, **how)


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The parts that are computed from now on."""
    found: list[int] = []
    real = Extraction.pieces

    def pieces(self, numbers, progress=lambda images: None):
        found.extend(numbers)
        return real(self, numbers, progress)

    monkeypatch.setattr(Extraction, "pieces", pieces)
    return found


def test_features_are_what_the_model_computes_of_each_image(photos: Path) -> None:
    own = extraction(photos)
    steps: list[int] = []
    found = features_of(own, ALONE, None, steps.append)
    pixels = [
        load_image(own.source, n, own.model.config, center(own.model.config)) for n in range(60)
    ]
    images = normalize(
        torch.from_numpy(np.stack(pixels)), own.model.config.mean, own.model.config.std
    )
    with torch.inference_mode():
        np.testing.assert_allclose(found.values, own.model.eval().features(images), atol=1e-5)
    assert found.indices.tolist() == list(range(60))
    assert steps == [8, 16, 24, 32, 40, 48, 56, 60]
    assert own.parts == 4


def test_they_are_computed_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = computed(monkeypatch)
    first = features_of(extraction(photos), ALONE, default_cache())
    assert seen == [0, 1, 2, 3]
    moved = shutil.copytree(photos, photos.with_name("moved"))
    again = features_of(extraction(moved), ALONE, default_cache())
    assert seen == [0, 1, 2, 3], "content decides, not the place"
    assert np.array_equal(first.values, again.values)
    features_of(extraction(photos), ALONE, None)
    assert len(seen) == 8


@pytest.mark.workers
def test_whatever_decides_the_numbers_changes_the_key(photos: Path) -> None:
    base = extraction(photos)
    other = model()
    with torch.no_grad():
        other.token[0, 0, 0] += 1e-6
    keys = [
        key_of(each, ALONE)
        for each in (
            base,
            replace(base, model=other),
            replace(base, model=model(fit="squash")),
            replace(base, model=model(mean=0.4)),
            replace(base, taken=Pooled(what="mean")),
            replace(base, taken=Pooled(what="mean", layer=1)),
            replace(base, precision="bf16"),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(replace(base, workers=2), ALONE) == keys[0]
    photo(99).save(photos / "red" / "007.png")
    assert key_of(extraction(photos), ALONE) not in keys


def damage(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_damage_is_noticed_and_repaired(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.array(features_of(extraction(photos), ALONE, default_cache()).values)
    (place,) = [each for each in default_cache().iterdir() if each.is_dir()]
    seen = computed(monkeypatch)
    for number, name in enumerate(
        ("features.npy", "features.npy", "manifest.json", "manifest.json")
    ):
        size = (place / name).stat().st_size
        damage(place / name, [0, size - 3, 5, size // 2][number])
        found = features_of(extraction(photos), ALONE, default_cache())
        assert len(seen) == 4 * (number + 1)
        assert np.array_equal(found.values, first)
    (place / "features.npy").unlink()
    features_of(extraction(photos), ALONE, default_cache())
    assert len(seen) == 20


def test_after_a_kill_only_what_is_missing_or_damaged_is_computed(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = np.array(features_of(extraction(photos), ALONE, None).values)

    def stop(images: int) -> None:
        if images > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features_of(extraction(photos), ALONE, default_cache(), stop)
    (drafts,) = default_cache().glob("*.parts")
    assert sorted(each.name for each in drafts.iterdir()) == [
        "000000.safetensors",
        "000001.safetensors",
    ]
    damage(drafts / "000001.safetensors", 300)
    seen = computed(monkeypatch)
    found = features_of(extraction(photos), ALONE, default_cache())
    assert seen == [1, 2, 3]
    assert np.array_equal(found.values, whole)
    assert not drafts.exists()


def test_what_a_killed_process_left_is_removed_and_no_locks_are_needed(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    own = extraction(photos)
    draft = default_cache() / f".{key_of(own, ALONE)}.draft-abcdefgh"
    draft.mkdir(parents=True)
    (draft / ".tmpRYaTvc").write_text("half")
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        features_of(own, ALONE, default_cache())
    assert draft.exists()  # another process may be at work on it
    assert capsys.readouterr().err == (
        f"{default_cache()} has no file locks (no locks available): some features may be computed "
        "twice\n"
    )
    features_of(own, ALONE, default_cache())
    assert not draft.exists()


def test_damaged_images_are_left_out_and_remembered(photos: Path) -> None:
    for name in ("blue/003", "red/019"):
        (photos / f"{name}.png").write_bytes(b"no image")
    for _ in range(2):  # computed, then read
        found = features_of(extraction(photos), ALONE, default_cache())
        assert sorted(found.bad) == [3, 59]
        assert found.bad[59].startswith(f"{photos}/red/019.png: not a JPEG")
        assert len(found.values) == len(found.indices) == 58
        assert not {3, 59} & set(found.indices.tolist())
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"blue/000\.png: the file is empty"):
        features_of(extraction(photos), ALONE, default_cache())


def test_the_features_not_used_for_longest_go_first(photos: Path) -> None:
    cache = default_cache()
    for what in ("features", "mean"):
        features_of(replace(extraction(photos), taken=Pooled(what=what)), ALONE, cache)
    features_of(extraction(photos), ALONE, cache)  # used again
    old = [each for each in cache.iterdir() if each.is_dir()]
    key = key_of(extraction(photos), ALONE)
    prune(cache, 10**9)
    assert len(old) == 2
    prune(cache, 5000)
    assert [each.name for each in cache.iterdir() if each.is_dir()] == [key]
    prune(cache, 10)
    assert (cache / key).is_dir(), "the newest is in use"


def together(photos: Path, cache: Path | None) -> list[object]:
    """One process of several."""
    with joined("cpu", 60) as (world, _):
        own = extraction(photos)
        numbers: list[int] = []
        real = Extraction.pieces

        def pieces(self, todo, progress=lambda images: None):
            numbers.extend(todo)
            return real(self, todo, progress)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Extraction, "pieces", pieces)
            found = features_of(own, world, cache)
        return [numbers, found.values.tolist(), found.indices.tolist(), len(found.bad)]


@pytest.mark.parametrize("kept", [True, False])
def test_several_processes_share_the_parts(photos: Path, tmp_path: Path, kept: bool) -> None:
    (photos / "green" / "004.png").write_bytes(b"x")
    alone = features_of(extraction(photos), ALONE, None)
    cache = default_cache() if kept else None
    said = on_ranks(3, partial(together, photos, cache), tmp_path / "ranks")
    shares = [each["value"][0] for each in said]
    assert shares == [[0, 3], [1], [2]]
    assert np.array_equal(np.array(said[0]["value"][1], np.float32), alone.values)
    assert said[0]["value"][2:] == [alone.indices.tolist(), 1]
    assert said[1]["value"][1] == []
    if kept:
        again = on_ranks(2, partial(together, photos, cache), tmp_path / "again")
        assert [each["value"][0] for each in again] == [[], []]
