"""Small images cached in memory: the same batches, decoded once."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import photo_folder
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.batches import TrainingBatches
from vitlab.data.loading.cache import CachedImages, cached
from vitlab.data.loading.loader import choose_workers
from vitlab.data.settings import Augment
from vitlab.data.sources.folders import Files
from vitlab.data.sources.memory import digits
from vitlab.models.config import ViTConfig


@pytest.fixture
def small(tmp_path: Path) -> Files:
    source = open_to_learn(str(photo_folder(tmp_path / "p", {"a": 9, "b": 9}))).whole.whole
    assert isinstance(source, Files)
    return source


def test_batches_are_the_same(small: Files) -> None:
    memory = cached(small, 3)
    assert isinstance(memory, CachedImages)
    assert (memory.classes, len(memory)) == (small.classes, len(small))
    config = ViTConfig(width=8, heads=2, patch=8, image_size=16)
    options = Augment(area=0.3, flip=True)
    for k in range(3):
        one, other = (TrainingBatches(s, config, options, 3, 4)[k] for s in (small, memory))
        assert np.array_equal(one.images, other.images)
        assert np.array_equal(one.labels, other.labels)
    assert choose_workers(memory, None) == 0
    assert choose_workers(small, None) > 0
    assert memory.name(3) == small.name(3)


def test_what_is_large_damaged_or_of_several_sizes_stays_where_it_is(
    small: Files, tmp_path: Path
) -> None:
    assert cached(digits(), 1) is not None
    file = small.root / small.paths[4]
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], None):
        if content is None:
            Image.new("RGB", (7, 9)).save(file)
        else:
            file.write_bytes(content)
        assert cached(small, 3) is small
    big = photo_folder(tmp_path / "big", {"a": 6, "b": 6}, rows=70, columns=80)
    source = open_to_learn(str(big)).train
    assert cached(source, 3) is source
