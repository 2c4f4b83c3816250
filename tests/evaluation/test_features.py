"""Features on the disk: the model's own, computed once, checked, recomputed where damaged."""

import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from distributed.ranks import on_ranks
from evaluation.small_models import noisy
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.loading.crops import fitted_image
from vitlab.data.open_splits import open_to_learn
from vitlab.distributed.launch import joined
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DataError
from vitlab.evaluation import infer, shards
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import default_cache, features_of, key_of, prune
from vitlab.evaluation.features import ImageFeatures, features_in_memory
from vitlab.evaluation.probes.feature_options import Pooled
from vitlab.evaluation.shards import Shard, ShardFolder

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 8 and parts of 16, so that 60 pictures make four."""
    monkeypatch.setattr(infer, "BATCH", 8)
    monkeypatch.setattr(shards, "ROWS", 16)


@dataclass(frozen=True)
class Asked:
    """The features of all images of a folder."""

    photos: Path
    model: vitlab.VisionTransformer = field(default_factory=noisy)
    taken: Pooled = Pooled()
    compute: Compute = Compute(CPU, workers=0)

    @property
    def source(self) -> Images:
        return open_to_learn(str(self.photos)).whole

    def features(self, cache: Path | None = None, world: World = ALONE) -> ImageFeatures:
        how = self.model, self.source, self.compute, self.taken
        return features_of(*how, world=world, cache=cache)

    @property
    def key(self) -> str:
        return key_of(self.model, self.source, self.compute, self.taken)


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that are computed from now on."""
    found: list[int] = []
    real = ShardFolder._write

    def write(self: ShardFolder, shard: Shard, batches: object) -> None:
        found.append(int(shard.name[-5:]))
        real(self, shard, batches)

    monkeypatch.setattr(ShardFolder, "_write", write)
    return found


def test_features_are_what_the_model_computes_of_each_image(photos: Path) -> None:
    own = Asked(photos)
    found = own.features()
    pixels = [fitted_image(own.source.image(n), own.model.config) for n in range(60)]
    images = normalize(torch.from_numpy(np.stack(pixels)), own.model.config)
    with torch.inference_mode():
        np.testing.assert_allclose(found.values, own.model.eval().features(images), atol=1e-5)
    assert found.indices.tolist() == list(range(60))
    quick = features_in_memory(own.model, own.source, own.compute)
    assert np.array_equal(quick.values, found.values)
    assert quick.indices.tolist() == found.indices.tolist()


def test_they_are_computed_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = computed(monkeypatch)
    first = Asked(photos).features(default_cache())
    assert seen == [0, 1, 2, 3]
    moved = shutil.copytree(photos, photos.with_name("moved"))
    again = Asked(moved).features(default_cache())
    assert seen == [0, 1, 2, 3], "content decides, not the place"
    assert np.array_equal(first.values, again.values)
    assert np.array_equal(Asked(photos).features().values, first.values)
    assert len(seen) == 4, "without a cache they are in memory alone"
    monkeypatch.setattr(shards, "BYTES", 8 * 16 * 4)  # a batch of 8, of 16 numbers each
    replace(Asked(photos), taken=Pooled(what="mean")).features(default_cache())
    assert seen[4:] == [*range(8)], "parts are small"


@pytest.mark.workers
def test_whatever_decides_the_numbers_changes_the_key(photos: Path) -> None:
    base = Asked(photos)
    other = noisy()
    with torch.no_grad():
        other.token[0, 0, 0] += 1e-6
    changes: list[dict[str, Any]] = [
        {}, {"model": other}, {"model": noisy(fit="squash")}, {"model": noisy(mean=0.4)},
        {"taken": Pooled(what="mean")}, {"taken": Pooled(what="mean", layer=1)},
        {"compute": replace(base.compute, precision="bf16")},
    ]  # fmt: skip
    keys = [replace(base, **each).key for each in changes]
    assert len(set(keys)) == len(keys)
    assert replace(base, compute=replace(base.compute, workers=2)).key == keys[0]
    photo(99).save(photos / "red" / "007.png")
    assert Asked(photos).key not in keys


def damage(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_damage_is_noticed_and_repaired(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.array(Asked(photos).features(default_cache()).values)
    (file,) = default_cache().glob("*.safetensors")
    seen = computed(monkeypatch)
    size = file.stat().st_size
    for number, place in enumerate((30, size - 3, size // 2, 3)):
        damage(file, place)
        found = Asked(photos).features(default_cache())
        assert len(seen) == 4 * (number + 1)
        assert np.array_equal(found.values, first)
    draft = file.with_name(f".{file.name}.draft-abcdefgh")  # of a killed process
    draft.mkdir()
    file.write_bytes(file.read_bytes()[:-9])
    Asked(photos).features(default_cache())
    file.unlink()
    Asked(photos).features(default_cache())
    assert len(seen) == 24
    assert [each.name for each in default_cache().iterdir()] == [file.name]


def test_damaged_images_are_left_out_and_remembered(photos: Path) -> None:
    for name in ("blue/003", "red/019"):
        (photos / f"{name}.png").write_bytes(b"no image")
    for _ in range(2):  # computed, then read
        found = Asked(photos).features(default_cache())
        assert len(found.bad) == 2
        assert found.bad[1].startswith(f"{photos}/red/019.png: not a JPEG")
        assert len(found.values) == len(found.indices) == 58
        assert not {3, 59} & set(found.indices.tolist())
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"blue/000\.png: the file is empty"):
        Asked(photos).features(default_cache())


def test_the_features_not_used_for_longest_go_first(photos: Path) -> None:
    cache = default_cache()
    for what in ("features", "mean"):
        replace(Asked(photos), taken=Pooled(what=what)).features(cache)
    Asked(photos).features(cache)  # used again
    old, key = list(cache.iterdir()), f"{Asked(photos).key}.safetensors"
    prune(cache, 10**9)
    assert len(old) == 2
    prune(cache, 5000)
    assert [each.name for each in cache.iterdir()] == [key]
    prune(cache, 10)
    assert (cache / key).is_file(), "the newest is in use"


def together(photos: Path) -> list[object]:
    """One process of several: with a cache, again, and without."""
    own = Asked(photos)
    with joined("cpu", 60) as (world, _), pytest.MonkeyPatch.context() as patch:
        numbers = computed(patch)
        found = own.features(default_cache(), world)
        shared = [*numbers]
        others = (own.features(default_cache(), world), own.features(None, world))
        quick = features_in_memory(own.model, own.source, own.compute, world=world)
        for other in (*others, quick):
            assert np.array_equal(found.values, other.values) or not world.first
        assert numbers == shared
    return [shared, found.values.tolist(), found.indices.tolist(), len(found.bad)]


def test_several_processes_share_the_parts(photos: Path, tmp_path: Path) -> None:
    (photos / "green" / "004.png").write_bytes(b"x")
    alone = Asked(photos).features()
    said = on_ranks(3, partial(together, photos), tmp_path / "ranks")
    assert [each["value"][0] for each in said] == [[0, 3], [1], [2]]
    assert np.array_equal(np.array(said[0]["value"][1], np.float32), alone.values)
    assert said[0]["value"][2:] == [alone.indices.tolist(), 1]
    assert said[1]["value"][1] == []
