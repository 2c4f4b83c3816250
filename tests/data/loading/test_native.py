"""Images that keep their aspect ratio: sizes, pixels, batches and augmentation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import LIGHT, photo
from vitlab.data.augment.augment import augment
from vitlab.data.augment.draws import draws_needed
from vitlab.data.augment.normalize import normalize
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment, Data
from vitlab.distributed.shares import passes
from vitlab.distributed.world import World
from vitlab.errors import OptionError
from vitlab.images import ImageSpec, native_size
from vitlab.models.config import ViTConfig, config_of
from vitlab.models.packed import Packed

SHAPES = [(24, 32), (40, 20), (64, 9), (16, 16), (13, 57), (24, 32)]
CONFIG = ViTConfig(
    width=16, heads=2, patch=4, image_size=16, classes=2, fit="native", tokens=20,
    interpolation="bicubic", mean=(0.4, 0.5, 0.6),
)  # fmt: skip


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """Two classes of pictures of six shapes."""
    for tint, name in enumerate(("a", "b")):
        (tmp_path / "shapes" / name).mkdir(parents=True)
        for number, (rows, columns) in enumerate(SHAPES * 2):
            photo(number, rows, columns, tint).save(tmp_path / "shapes" / name / f"{number}.png")
    return tmp_path / "shapes"


def batches(data: Path, options: Augment) -> TrainingBatches:
    return TrainingBatches(open_to_learn(str(data)).train, CONFIG, options, seed=3, batch=7)


def patches(batch: Batch) -> Packed:
    assert isinstance(batch.images, Packed)
    return batch.images


def test_sizes_are_those_of_siglip_2_and_timm() -> None:
    from timm.data.naflex_transforms import get_image_size_for_seq
    from transformers.models.siglip2 import image_processing_siglip2 as siglip2

    generator = np.random.default_rng(0)
    shapes = [*generator.integers(1, 3000, (60, 2)).tolist(), [1, 5000], [5000, 1], [224, 224]]
    for patch, tokens in ((16, 256), (14, 100), (32, 49), (4, 1)):
        for rows, columns in shapes:
            size = native_size(rows, columns, patch, tokens)
            assert size == siglip2.get_image_size_for_max_num_patches(rows, columns, patch, tokens)
            assert size == get_image_size_for_seq((rows, columns), patch, tokens)[1]


def test_a_random_crop_has_about_the_aspect_of_its_image(shapes: Path) -> None:
    source = batches(shapes, Augment(area=0.5, aspect=1.1))
    for k in range(4):
        batch = source[k]
        for index, grid in zip(batch.indices.tolist(), patches(batch).grids, strict=True):
            rows, columns = source.source.image(index).shape()[:2]
            changes = np.linspace(1 / 1.1, 1.1, 200)
            near = {native_size(rows * change, columns, 4, 20) for change in changes}
            assert (4 * grid[0], 4 * grid[1]) in near


def test_each_image_is_augmented_as_by_itself(shapes: Path) -> None:
    many = {"flip": True, "rand_ops": 2, "rand_probability": 1.0, "color_jitter": 0.3, "erase": 0.5}
    options = Augment(area=0.4, **many)
    batch = batches(shapes, options)[0]
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    spec = ImageSpec(mean=mean, std=std)
    assert batch.draws.shape[1] == draws_needed(options)
    together = augment(patches(batch), batch.draws, options, spec)
    for number, image in enumerate(patches(batch).images()):
        own = batch.draws[number : number + 1]
        alone = augment(image.permute(1, 2, 0)[None], own, options, spec)
        torch.testing.assert_close(together.images()[number], alone[0])
    plain = normalize(patches(batch), spec)
    offset, scale = (torch.tensor(each)[:, None, None] for each in (mean, std))
    want = (patches(batch).images()[0] / 255 - offset) / scale
    torch.testing.assert_close(plain.images()[0], want)


def test_batches_split_and_fill_up_as_others_do(shapes: Path) -> None:
    batch = replace(batches(shapes, Augment())[0], total=14)
    pieces = list(batch.pieces(3))
    assert [len(piece) for piece in pieces] == [2, 2, 2, 1]
    assert torch.equal(torch.cat([patches(p).patches for p in pieces]), patches(batch).patches)
    world = World(rank=1, size=2, local_size=2)
    shares = passes(next(batch.pieces(2)), 2, world, 14)
    assert [count for _, count in shares][-1] == 0
    assert patches(shares[-1][0]).grids == ((1, 1),)
    assert not patches(shares[-1][0]).patches.any()


def test_a_batch_of_damaged_images_alone_is_empty(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"no image")
        (tmp_path / name / "1.png").write_bytes(b"none")
    source = open_to_learn(str(tmp_path), options=Data(test_fraction=0.5)).train
    batch = EvaluationBatches(source, CONFIG, 4)[0]
    assert (len(batch), len(patches(batch)), len(batch.bad)) == (0, 0, 2)


def test_what_does_not_go_with_native_sizes_is_refused() -> None:
    with pytest.raises(OptionError, match="tokens=100 applies only with fit=native"):
        ImageSpec(tokens=100)
    with pytest.raises(OptionError, match="positions=relative hold for one grid only"):
        ViTConfig(fit="native", positions="relative")
    with pytest.raises(OptionError, match="fit=native needs patches, which a ResNet does not have"):
        config_of("BiT-R50x1", fit="native")
    model = "ViT(width=16,depth=1,heads=2,mlp=16)/2"
    recipe = vitlab.recipe("small", "digits", model=model, fit="native", mixup=0.2)
    with pytest.raises(OptionError, match=r"mixup needs images of one size, .* set mixup=0"):
        vitlab.train(recipe, "run", host=LIGHT)
    assert not Path("run").exists()
