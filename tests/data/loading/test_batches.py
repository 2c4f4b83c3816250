"""Batches: the same whatever the number of workers, damaged images left out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import photo
from vitlab.data.augment.draws import draws_needed
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import loader
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.memory import Arrays
from vitlab.images import ImageSpec
from vitlab.models.config import ViTConfig

CONFIG = ViTConfig(width=16, heads=2, patch=4, image_size=(16, 24), classes=3)


def batches(data: Path, options: Augment) -> TrainingBatches:
    return TrainingBatches(open_to_learn(str(data)).train, CONFIG, options, seed=3, batch=7)


def same(a: Batch, b: Batch) -> bool:
    tensors = ("images", "labels", "draws", "indices")
    return all(torch.equal(getattr(a, key), getattr(b, key)) for key in tensors) and a.bad == b.bad


def test_batches_do_not_depend_on_workers_or_on_where_one_starts(photos: Path) -> None:
    (photos / "red" / "003.png").write_bytes(b"no image")
    source = batches(photos, Augment(area=0.3))
    alone = list(loader(source, range(10), workers=0))
    again = list(loader(source, range(4, 10), workers=2))
    assert len(again) == 6
    assert all(map(same, alone[4:], again))


def test_a_damaged_image_shortens_its_batch_and_is_reported(photos: Path) -> None:
    for name in ("blue/001", "green/002", "red/003", "red/004"):
        (photos / f"{name}.png").write_bytes(b"no image")
    source = batches(photos, Augment())
    bad = {index for k in range(7) for index, _ in source[k].bad}
    names = {Path(source.source.name(index)).name for index in bad}
    assert names <= {"001.png", "002.png", "003.png", "004.png"}
    assert len(bad) >= 2
    for k in range(7):
        batch = source[k]
        assert len(batch) + len(batch.bad) == 7
        assert not bad & set(batch.indices.tolist())
        assert len(batch.images) == len(batch.labels) == len(batch.draws)


def test_random_crops_differ_between_epochs_and_stay_the_same_in_one(photos: Path) -> None:
    source = batches(photos, Augment(area=0.3))
    images = len(source.source)
    batches_ = [source[k] for k in range(9)]
    pairs = [zip(each.indices.tolist(), each.images, strict=True) for each in batches_]
    first, later = {i: p for own in pairs[:7] for i, p in own}, list(pairs[8])
    assert images < 8 * 7  # another epoch
    assert any(not torch.equal(first[i], pixels) for i, pixels in later if i in first)


def test_copies_of_an_image_are_cropped_and_varied_on_their_own(photos: Path) -> None:
    options = Augment(area=0.3, repeats=3, rand_ops=2)
    batch = TrainingBatches(open_to_learn(str(photos)).train, CONFIG, options, seed=3, batch=12)[1]
    indices, counts = batch.indices.unique(return_counts=True)
    assert len(indices) == 4
    assert set(counts.tolist()) == {3}
    assert batch.draws.shape == (12, draws_needed(options))
    for index in indices:
        copies = batch.indices == index
        assert len(batch.images[copies].unique(dim=0)) == 3
        assert len(batch.draws[copies].unique(dim=0)) == 3
        assert len(batch.labels[copies].unique()) == 1


def jpegs(folder: Path) -> ImageFiles:
    """Photos that are read in as many ways: reduced, turned, gray, damaged, cut off, odd."""
    exif = Image.Exif()
    exif[274] = 6
    for number, options in enumerate(({}, {"subsampling": 0}, {"exif": exif}, {"quality": 60})):
        photo(number, 90 + 60 * number, 120).save(folder / f"{number}.jpg", **options)
    photo(4, 70, 90).convert("L").save(folder / "4.jpg")
    whole = (folder / "1.jpg").read_bytes()
    (folder / "5.jpg").write_bytes(whole[: len(whole) * 2 // 3] + b"\xff\xd9")
    (folder / "6.jpg").write_bytes(whole[:-900])
    start = whole.index(b"\xff\xdb")
    (folder / "7.jpg").write_bytes(whole[:start] + b"\1\2" + whole[start:])
    (folder / "8.jpg").write_bytes(whole[:-2] + b"\1\2\3\xff\xd9")
    photo(9, 70, 90).save(folder / "9.png")
    names = sorted(each.name for each in folder.iterdir())
    return Images.of(ImageFiles(folder, names), SingleLabels.blank(len(names), 2), ("a", "b"))


@pytest.mark.parametrize("fit", ["crop", "native"])
def test_copies_of_a_jpeg_are_what_each_would_be_alone(tmp_path: Path, fit: str) -> None:
    """Another number of processes puts the copies of an image into other batches."""
    source, spec = jpegs(tmp_path), replace(CONFIG, fit=fit) if fit != "crop" else CONFIG
    whole = TrainingBatches(source, spec, Augment(area=0.05, repeats=3), seed=3, batch=30)
    for k in range(4):
        together = whole[k]
        parts = [replace(whole, rank=rank, processes=30)[k] for rank in range(30)]
        assert torch.equal(together.indices, torch.cat([part.indices for part in parts]))
        alone = [part.images for part in parts]
        if fit == "native":
            assert together.images.grids == sum((each.grids for each in alone), ())
            together = replace(together, images=together.images.patches)
            alone = [each.patches for each in alone]
        assert torch.equal(together.images, torch.cat(alone))
        assert sorted(together.bad) == sorted(each for part in parts for each in part.bad)
        assert {index for index, _ in together.bad} <= {5, 6}


def test_nothing_of_a_batch_is_lost_on_the_way() -> None:
    images, labels = torch.arange(10)[:, None], torch.arange(10)
    batch = Batch(images, labels, torch.rand(10, 6), torch.arange(10), [(3, "bad")], total=17)
    for other in (batch.to(torch.device("cpu")), *batch.pieces(4), *batch.pieces(99)):
        assert (other.bad, other.total) == ([(3, "bad")], 17)
    moved = batch.to(torch.device("meta"))
    where = {n: v.device.type for n, v in vars(moved).items() if isinstance(v, torch.Tensor)}
    # the host reads the last two, and would wait for them
    assert where == {"images": "meta", "labels": "meta", "draws": "cpu", "indices": "cpu"}
    assert [len(piece) for piece in batch.pieces(5)] == [4, 4, 2]  # splits no pair of neighbors
    assert [len(piece) for piece in batch.pieces(1)] == [1] * 10
    pieces = list(batch.pieces(4))
    assert [len(piece) for piece in pieces] == [4, 4, 2]
    assert torch.equal(torch.cat([piece.images for piece in pieces]), batch.images)
    last = pieces[-1]
    assert torch.equal(last.draws, batch.draws[8:])
    assert last.indices.tolist() == last.labels.tolist() == [8, 9]


def test_evaluation_sees_every_image_once_in_order(photos: Path) -> None:
    test = open_to_learn(str(photos)).test
    whole = EvaluationBatches(test, CONFIG, 5)
    batches_ = list(loader(whole, range(len(whole)), workers=0))
    assert [len(each) for each in batches_] == [5, 5, len(test) - 10]
    assert torch.cat([each.indices for each in batches_]).tolist() == list(range(len(test)))
    assert torch.cat([each.labels for each in batches_]).tolist() == test.target.values.tolist()


def test_pixels_get_the_channels_the_model_wants() -> None:
    for have, want in ((1, 3), (3, 1), (3, 3)):
        pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, have), np.uint8)
        source = Images.of(Arrays(pixels), SingleLabels(np.array([0, 1, 0, 1])), ("a", "b"))
        config = ViTConfig(width=16, heads=2, patch=4, image_size=8, channels=want, classes=2)
        got = EvaluationBatches(source, config, 4)[0].images.numpy()
        assert got.shape == (4, 8, 8, want)
        if want == 1:
            theirs = np.stack([np.asarray(Image.fromarray(p).convert("L")) for p in pixels])
            assert np.array_equal(got[..., 0], theirs)
        else:
            assert np.array_equal(got, np.broadcast_to(pixels, got.shape))


def test_damage_anywhere_in_a_jpeg_is_noticed_in_evaluation(tmp_path: Path) -> None:
    """Also below the center crop, where training does not look."""
    file = tmp_path / "tall.jpg"
    photo(0, 640, 64).save(file, quality=95, subsampling=0)
    file.write_bytes(file.read_bytes()[:-400] + b"\xff\xd9")
    source = Images.of(ImageFiles(tmp_path, [file.name]), SingleLabels.blank(1, 2), ("a", "b"))
    batch = EvaluationBatches(source, ImageSpec(image_size=16), 1)[0]
    assert len(batch) == 0
    assert "tall.jpg: damaged JPEG (" in batch.bad[0][1]
