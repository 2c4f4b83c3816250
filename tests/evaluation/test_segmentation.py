"""Segmentation: windows, figures and patch heads against PyTorch, SciPy and scikit-learn."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from torch import Tensor
from torch.nn import functional as F

import vitlab
from made_scenes import CLASSES, scene
from places_opened import open_masks
from vitlab.data.loading.crops import resized_sides
from vitlab.data.target import IGNORED
from vitlab.errors import DataError
from vitlab.evaluation import segmentation
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.mask_figures import REACH, boundary, counts_of, mask_figures, measure
from vitlab.evaluation.probes.patch_heads import (
    DrawnPixels,
    PixelSums,
    collected,
    drawn,
    features_at,
    find_patch_head,
)
from vitlab.evaluation.segmentation import (
    Mapped,
    Scene,
    corners_of,
    labels_at,
    mapped,
    mask_image,
    segment,
    stitched,
    voc_palette,
)
from vitlab.images import ImageSpec
from vitlab.models.heads.mask_classes import MaskClasses
from vitlab.models.heads.segment import DenseClasses, PatchLayer, Segmenter, patch_features

SPEC = ImageSpec(image_size=16)
CPU = Compute("cpu", workers=0)


def scene_of(rows: int, columns: int, truth: NDArray[np.int16] | None = None) -> Scene:
    pixels = np.zeros((rows, columns, 3), np.uint8)
    return Scene(0, pixels, (rows, columns), truth)


def random_maps(rows: int, columns: int, channels: int = 5) -> Mapped:
    """Maps of 4x4 places for every window of 16x16."""
    corners = corners_of((rows, columns), SPEC.size)
    maps = torch.randn(len(corners), channels, 4, 4, generator=torch.Generator().manual_seed(0))
    return Mapped(scene_of(rows, columns), maps, corners)


@pytest.mark.parametrize("size", [(16, 16), (16, 27), (40, 16), (33, 50), (17, 16)])
def test_windows_cover_every_pixel(size: tuple[int, int]) -> None:
    seen = np.zeros(size, int)
    corners = corners_of(size, (16, 16))
    for top, left in corners:
        assert 0 <= top <= size[0] - 16
        assert 0 <= left <= size[1] - 16
        seen[top : top + 16, left : left + 16] += 1
    assert seen.min() >= 1
    assert len(set(corners)) == len(corners)
    steps = np.diff(sorted({top for top, _ in corners}))
    assert (steps <= 11).all()  # two thirds of 16


def test_the_shorter_side_becomes_that_of_the_input() -> None:
    for size, scale in product([(500, 375), (10, 900), (3, 3), (1200, 1200)], [1.0, 2.5]):
        rows, columns = resized_sides(size, SPEC.size, scale)
        assert min(rows, columns) == round(16 * scale)
        assert rows / columns == pytest.approx(size[0] / size[1], rel=0.04)
        assert resized_sides(size, (16, 32), scale) >= (16, 32)


def test_windows_are_resized_bilinearly_and_averaged_where_they_overlap() -> None:
    """One window is DINOv2's."""
    for columns, corners in ((16, [(0, 0)]), (27, [(0, 0), (0, 11)])):
        found = random_maps(16, columns)
        assert found.corners == corners
        each = F.interpolate(found.maps, (16, 16), mode="bilinear", align_corners=False)
        made = stitched(found, SPEC.size)
        assert torch.equal(made[..., :11], each[0, ..., :11])
        assert torch.equal(made[..., 16:], each[1, ..., 5:] if columns > 16 else made[..., 16:])
    assert torch.allclose(made[..., 11:16], (each[0, ..., 11:] + each[1, ..., :5]) / 2)


@pytest.mark.parametrize("size", [(16, 16), (33, 50)])
def test_the_features_of_a_pixel_are_those_of_its_scores(size: tuple[int, int]) -> None:
    """The fit sees what `stitched` computes there, since a head is linear."""
    found = random_maps(*size)
    draw = np.random.default_rng(1)
    points = np.stack([draw.integers(0, side, 60) for side in size], 1)
    points[:4] = [(0, 0), (0, size[1] - 1), (size[0] - 1, 0), (size[0] - 1, size[1] - 1)]
    values = features_at(found, points, SPEC.size)
    own = stitched(found, SPEC.size).numpy()[:, points[:, 0], points[:, 1]].T
    assert np.abs(values - own).max() < 1e-5


def test_classes_are_those_of_the_highest_score_however_few_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = torch.randn(9, 7, 5, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    for size in ((23, 31), (4, 3), (7, 5)):
        whole = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
        for slab in (10**9, 2 * math.prod(size), 1):
            monkeypatch.setattr(segmentation, "SLAB", slab)
            assert np.array_equal(labels_at(scores, size), whole.argmax(0).numpy())


# Figures


def random_labels(seed: int, rows: int = 37, columns: int = 52) -> NDArray[np.int16]:
    """Blots of four classes."""
    rough = np.random.default_rng(seed).normal(size=(4, rows, columns))
    smooth = ndimage.gaussian_filter(rough, (0, 3, 3))
    return smooth.argmax(0).astype(np.int16)


def disturbed(labels: NDArray[np.int16], seed: int) -> NDArray[np.int16]:
    draw = np.random.default_rng(seed)
    return np.where(draw.random(labels.shape) < 0.15, random_labels(seed + 99), labels)


def test_figures_are_those_of_scikit_learn() -> None:
    """Of all pixels together; a class that is nowhere has no part in the mean."""
    truth = [random_labels(seed) for seed in range(5)]
    guess = [disturbed(each, seed) for seed, each in enumerate(truth)]
    truth[0][:9, :20] = IGNORED
    counts = np.stack([counts_of(g, t, 6) for g, t in zip(guess, truth, strict=True)])
    found = mask_figures(counts, [*"abcdef"])
    t, g = (np.concatenate([each.ravel() for each in part]) for part in (truth, guess))
    t, g = t[t != IGNORED], g[t != IGNORED]
    own = jaccard_score(t, g, average=None)
    assert len(own) == 4
    assert found["miou"] == pytest.approx(own.mean())
    assert found["pixel_accuracy"] == pytest.approx(accuracy_score(t, g))
    assert [row["iou"] for row in found["classes"]] == [*map(pytest.approx, own), None, None]
    assert [row["pixels"] for row in found["classes"]] == [*np.bincount(t, minlength=6)]
    there = [sum(bool((each == row).any()) for each in truth) for row in range(6)]
    assert [row["images"] for row in found["classes"]] == there
    assert counts.sum(0)[:4, 0].tolist() == np.diag(confusion_matrix(t, g)).tolist()


def eroded_boundary(mask: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """As the authors of boundary IoU: cv2.erode with a kernel of 3x3, over a border of zeros."""
    return mask & ~ndimage.binary_erosion(mask, np.ones((3, 3)), iterations=reach, border_value=0)


def test_boundary_iou_is_that_of_its_authors() -> None:
    for reach in (1, 2, 5):
        labels = random_labels(3)
        found = boundary(labels, reach)
        for own in range(4):
            expected = eroded_boundary(labels == own, reach)
            assert np.array_equal(found & (labels == own), expected)
    truth = random_labels(4, 90, 120)
    guess = np.roll(truth, 2, 1)
    reach = max(1, round(REACH * math.hypot(*truth.shape)))
    each = []
    for own in range(4):
        ours, theirs = (eroded_boundary(part == own, reach) for part in (guess, truth))
        each.append((ours & theirs).sum() / (ours | theirs).sum())
    figures = mask_figures(counts_of(guess, truth, 4)[None], [*"abcd"])
    assert figures["boundary_iou"] == pytest.approx(np.mean(each))
    assert [row["boundary_iou"] for row in figures["classes"]] == [*map(pytest.approx, each)]
    truth[10:20, 10:30] = IGNORED  # a perfect prediction has ones also around what is ignored
    guess = np.where(truth == IGNORED, np.int16(2), truth)
    figures = mask_figures(counts_of(guess, truth, 4)[None], [*"abcd"])
    assert (figures["miou"], figures["pixel_accuracy"], figures["boundary_iou"]) == (1, 1, 1)


def test_intervals_are_over_images() -> None:
    """They are those of a bootstrap by hand, narrower of more images, and none of very few."""
    pairs = [(random_labels(n), disturbed(random_labels(n), n)) for n in range(60)]
    counts = np.stack([counts_of(guess, truth, 4) for truth, guess in pairs])
    few, many = (mask_figures(counts[:n], [*"abcd"]) for n in (25, 60))
    assert mask_figures(counts[:19], [*"abcd"])["intervals"] == {}
    for name in ("miou", "pixel_accuracy", "boundary_iou"):
        (low, high), (least, most) = few["intervals"][name], many["intervals"][name]
        assert low < few[name] < high
        assert high - low > most - least > 0
    draw = np.random.default_rng(7)
    own = []
    for _ in range(400):
        total = counts[draw.integers(0, 60, 60)].sum(0)
        own.append((total[:, 0] / (total[:, 1] + total[:, 2] - total[:, 0])).mean())
    width = np.subtract(*many["intervals"]["miou"][::-1])
    assert width == pytest.approx(2 * 1.96 * np.std(own), rel=0.15)


# Heads


def some_pixels(count: int = 700, width: int = 6, seed: int = 0) -> DrawnPixels:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 4, count)
    means = np.random.default_rng(5).normal(size=(4, width))
    x = (means[y] + draw.normal(size=(count, width)) + 3).astype(np.float32)
    sums = PixelSums(width, 4)
    for first in range(0, count, 128):
        sums.add(x[first : first + 128], y[first : first + 128])
    return DrawnPixels(sums, x, y)


def standardized(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return (x - x.mean(0, dtype=np.float64)) / (x.std(0, dtype=np.float64) + 1e-5)


@pytest.mark.parametrize("l2", [0.5, 4096.0])
def test_ridge_of_sums_is_scikit_learns(l2: float) -> None:
    """Also of the sums of two parts, which are those of the whole."""
    pixels, parts = some_pixels(), [PixelSums(6, 4), PixelSums(6, 4)]
    for sums, some in zip(parts, (slice(300), slice(300, None)), strict=True):
        sums.add(pixels.x[some], pixels.y[some])
    for own in (slice(0, 6), slice(3, None)):
        targets = np.where(pixels.y[:, None] == np.arange(4), 1.0, -1.0)
        z = standardized(pixels.x[:, own])
        theirs = Ridge(alpha=l2).fit(z, targets).predict(z)
        for sums in (pixels.sums, parts[0].merged(parts[1])):
            logits = sums.ridge(l2, own).logits(np.ascontiguousarray(pixels.x[:, own]))
            assert np.abs(logits - theirs).max() < 1e-4


def test_the_logistic_head_is_scikit_learns() -> None:
    learn, held = some_pixels(), some_pixels(seed=1)
    found = find_patch_head(learn, held, [(3,)], "logistic", torch.device("cpu"), refit=True)
    assert {each["head"] for each in found.tried} == {"ridge", "logistic"}
    assert found.head.by == "logistic"
    x, y = np.concatenate([learn.x, held.x]), np.concatenate([learn.y, held.y])
    theirs = LogisticRegression(C=1 / (len(y) * found.head.l2), tol=1e-8, max_iter=1000)
    z = standardized(x)
    likely = theirs.fit(z, y).predict_log_proba(z)
    own = found.head.logits(x)
    own -= np.logaddexp.reduce(own, 1)[:, None]
    assert np.abs(own - likely).max() < 0.02
    assert found.pixels == 1400


def test_the_layers_that_help_are_chosen() -> None:
    """The last layer says nothing; together with the one before it does, or the other way round."""
    noise = np.random.default_rng(3).normal(size=(700, 6)).astype(np.float32)
    made = []
    for order in (1, -1):
        parts = []
        for pixels in (some_pixels(), some_pixels(seed=1)):
            x, sums = np.concatenate([pixels.x, noise][::order], 1), PixelSums(12, 4)
            sums.add(x, pixels.y)
            parts.append(DrawnPixels(sums, x, pixels.y))
        found = find_patch_head(*parts, [(3,), (2, 3)], "auto", CPU.where, refit=False)
        made.append(found)
    alone = [max(each["miou"] for each in found.tried if each["layers"] == [3]) for found in made]
    assert alone[0] < 0.25 < 0.3 < alone[1]  # the last layer's features come last
    assert made[0].layers == (2, 3)
    assert made[0].miou > 0.3
    assert made[1].head.weights.shape == (4, 6 * len(made[1].layers))
    assert made[1].miou == pytest.approx(made[0].miou, abs=0.05)
    assert made[0].pixels == 700


def test_scores_of_ridge_are_logits_of_held_out_pixels() -> None:
    learn, held = (some_pixels(seed=seed) for seed in (0, 1))
    found = find_patch_head(learn, held, [(3,)], "ridge", torch.device("cpu"), refit=False)
    plain = learn.sums.ridge(found.head.l2, slice(None))
    scores, truth = torch.from_numpy(found.head.logits(held.x)), torch.from_numpy(held.y)
    ratio = plain.weights / found.head.weights
    assert ratio == pytest.approx(np.full(ratio.shape, ratio[0, 0]))
    losses = [F.cross_entropy(scores * by, truth).item() for by in (0.8, 1.0, 1.25)]
    assert losses[1] == min(losses)
    assert F.cross_entropy(scores * ratio[0, 0], truth).item() > losses[1]


# With a model


@pytest.fixture(scope="module")
def backbone() -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
    return vitlab.create(name, classes=0, image_size=16)


@pytest.fixture(scope="module")
def segmenter(backbone: vitlab.VisionTransformer) -> Segmenter:
    about = DenseClasses(CLASSES, (0, 1, 2, 3), 255, (1, 2), 1.0)
    torch.manual_seed(1)
    return Segmenter(backbone, PatchLayer(about, torch.randn(4, 32), torch.randn(4)))


def test_an_image_of_the_inputs_size_is_the_modules_output(segmenter: Segmenter) -> None:
    pairs = [scene(number, 16, 16) for number in range(3)]
    source = open_masks(pairs, like=segmenter.about).parts["all"]
    batch = vitlab.preprocess(segmenter.model)([image for image, _ in pairs])
    with torch.inference_mode():
        scores = segmenter(batch)
    assert scores.shape == (3, 4, 16, 16)
    for number, found in enumerate(segment(segmenter, source, CPU)):
        assert isinstance(found, segmentation.Segmented)
        assert np.array_equal(found.predicted, scores[number].argmax(0).numpy())


def test_features_are_the_layers_tokens_after_the_norm(segmenter: Segmenter) -> None:
    model = segmenter.model
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        found = patch_features(model, images, (1, 2))
        tokens = model.encode(images)[:, 1:]
    assert found.shape == (2, 32, 4, 4)
    assert torch.allclose(found[:, 16:].flatten(2).transpose(1, 2), tokens, atol=1e-6)


def test_the_same_maps_whatever_the_windows_beside_them(segmenter: Segmenter) -> None:
    """Images of several sizes in one pass, and each by itself."""
    pairs = [scene(n, 20 + 3 * n, 31) for n in range(5)]
    whole = open_masks(pairs, like=segmenter.about).parts["all"]

    def maps(source: object) -> list[Tensor]:
        args = source, segmenter.model.config.images, 1.0, CPU
        found = [*mapped(segmenter.coarse, *args)]  # type: ignore[arg-type]
        return [each.maps for each in found if isinstance(each, Mapped)]

    together = maps(whole)
    for number in range(5):
        (alone,) = maps(whole.take(np.array([number])))
        assert torch.allclose(alone, together[number], atol=1e-5)


def test_drawn_pixels_are_the_same_and_count(
    backbone: vitlab.VisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = np.full((30, 40), IGNORED, np.int16)
    truth[5:9, 10:30] = 2
    found = Mapped(scene_of(16, 21, truth), torch.zeros(1), [])
    points, y = drawn(found, np.random.default_rng(0))
    again, _ = drawn(found, np.random.default_rng(0))
    assert np.array_equal(points, again)
    assert set(y) == {2}
    assert len(np.unique(points, axis=0)) == len(points) > 5
    source = open_masks([scene(n) for n in range(4)], ignore=None).parts["all"]
    bad: list[tuple[int, str]] = []
    first, second = (collected(backbone, source, (1, 2), 1.0, CPU, 7, bad, "") for _ in range(2))
    assert np.array_equal(first.x, second.x)
    assert first.sums.count == 4 * 16 * 22
    other = collected(backbone, source, (1, 2), 1.0, CPU, 8, bad, "")
    assert not np.array_equal(first.y, other.y)
    monkeypatch.setattr("vitlab.evaluation.probes.patch_heads.KEPT", 4 * first.x.size // 16)
    few = collected(backbone, source, (1, 2), 1.0, CPU, 7, bad, "")
    assert (few.sums.count, len(few.x)) == (first.sums.count, len(first.x) // 16)


def test_damaged_images_and_masks_are_named_and_left_out(segmenter: Segmenter) -> None:
    pairs: list[tuple[object, object]] = [*(scene(n) for n in range(10))]
    pairs[2] = (b"no image", pairs[2][1])
    pairs[9] = (pairs[9][0], np.zeros((3, 3), int))
    source = open_masks(pairs, like=segmenter.about).parts["all"]
    tested = measure(segmenter, source, CPU)
    assert [number for number, _ in tested.bad] == [2, 9]
    assert "its mask has 3 x 3 pixels, the image 40 x 56" in tested.bad[1][1]
    assert tested.indices == [0, 1, 3, 4, 5, 6, 7, 8]
    assert (tested.figures["images"], tested.figures["damaged"]) == (8, 2)
    broken = open_masks([(b"no image", scene(0)[1])] * 2, like=segmenter.about).parts["all"]
    with pytest.raises(DataError, match="no image can be used: "):
        measure(segmenter, broken, CPU)


def test_long_images_are_left_out_before_memory_is_taken(segmenter: Segmenter) -> None:
    image = np.zeros((2, 500_000, 3), np.uint8)
    source = open_masks([(image, image[..., 0])] * 2, like=segmenter.about).parts["all"]
    found = [*segment(segmenter, source, CPU)]
    assert all("crop the image" in str(each[1]) for each in found)


def test_written_masks_have_the_numbers_and_voc_colors() -> None:
    labels = np.array([[0, 1], [2, 1]], np.int16)
    image = mask_image(labels, MaskClasses(("a", "b", "c"), (1, 15, 255), None))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), [[1, 15], [255, 15]])
    assert image.convert("RGB").getpixel((0, 0)) == (128, 0, 0)
    assert image.convert("RGB").getpixel((1, 0)) == (192, 128, 128)  # VOC's person
    assert voc_palette()[255].tolist() == [224, 224, 192]
    deep = mask_image(labels, MaskClasses(("a", "b", "c"), (1, 15, 256), None))
    assert np.asarray(deep).tolist() == [[1, 15], [256, 15]]
    assert isinstance(deep, Image.Image)
