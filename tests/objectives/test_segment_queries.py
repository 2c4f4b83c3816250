"""Segmentation by queries: matching and losses against transformers' EoMT and by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from objectives.made import NO_LABELS, batch_of
from oracles import peers
from vitlab.data.target import IGNORED
from vitlab.errors import OptionError
from vitlab.models.heads.segment import DenseClasses, MaskHead, semantic
from vitlab.objectives.segment import (
    Segment,
    mask_costs,
    matched_segments,
    segment_loss,
    segments_of,
)
from vitlab.recipes.pretext import Pretext
from vitlab.weights.save_head import save_head
from vitlab.weights.segmenter import load_segmenter

CLASSES, QUERIES, SIDE = 4, 7, 12
ABOUT = DenseClasses(("a", "b", "c", "d"), (0, 1, 2, 3), 255, (2,))


def answers() -> tuple[Tensor, Tensor, Tensor]:
    """Scores, masks and classes of pixels: three, one and two segments."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(3, QUERIES, CLASSES + 1, generator=draw)
    masks = 3 * torch.randn(3, QUERIES, SIDE, SIDE, generator=draw)
    truth = torch.full((3, SIDE, SIDE), 2)
    truth[0, :5], truth[0, 5:, :3], truth[2, :, 7:] = 0, 1, 3
    return scores, masks, truth


def test_matching_and_losses_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all pixels, where theirs are of points that are drawn; image by image, as with boxes."""
    peers.transformers()
    peers.prepare_torchvision()
    theirs = pytest.importorskip("transformers.models.eomt.modeling_eomt")
    config = pytest.importorskip("transformers").EomtConfig(num_labels=CLASSES)
    monkeypatch.setattr(theirs, "sample_point", lambda maps, *_, **__: maps.flatten(2))
    weights = {"loss_cross_entropy": config.class_weight, "loss_mask": config.mask_weight,
               "loss_dice": config.dice_weight}  # fmt: skip
    criterion = theirs.EomtLoss(config, weights)
    monkeypatch.setattr(criterion, "sample_points_using_uncertainty", lambda *_: None)
    scores, masks, truth = answers()
    classes = segments_of(truth)
    totals = []
    for number in range(3):
        one = scores[number : number + 1], masks[number : number + 1], truth[number : number + 1]
        own = classes[number][classes[number] >= 0]
        segments = (truth[number] == own[:, None, None]).float()
        given = one[1], one[0], [segments], [own]
        [(query, which)] = criterion.matcher(*given)
        pairs = matched_segments(*one, own[None])
        assert [each.tolist() for each in pairs[1:]] == [query.tolist(), which.tolist()]
        wanted = sum(weights[name] * each for name, each in criterion(*given).items())
        totals.append(segment_loss(*one, own[None]))
        assert float(totals[-1]) == pytest.approx(float(wanted), rel=1e-5)
    whole = segment_loss(scores, masks, truth, classes)
    assert float(whole) == pytest.approx(float(torch.stack(totals).mean()), rel=1e-5)


def test_costs_by_hand() -> None:
    """Two pixels of probability 1/2 and 3/4, of which the first is the segment."""
    masks = torch.tensor([[[0.5, 0.75]]]).logit()
    error = (-torch.tensor(1 / 2).log() - torch.tensor(1 / 4).log()) / 2
    dice = 1 - (2 * 1 / 2 + 1) / (1 / 2 + 3 / 4 + 1 + 1)
    wanted, counts = torch.tensor([[[1.0, 0.0]]]), torch.ones(1, 1, 2)
    assert float(mask_costs(masks, wanted, counts)) == pytest.approx(5 * float(error) + 5 * dice)
    counts[..., 1] = 0  # the second does not count
    error, dice = -torch.tensor(1 / 2).log(), 1 - (2 * 1 / 2 + 1) / (1 / 2 + 1 + 1)
    assert float(mask_costs(masks, wanted, counts)) == pytest.approx(5 * float(error) + 5 * dice)


def test_a_class_has_the_sum_over_queries_of_its_probability_times_the_masks() -> None:
    scores = torch.tensor([[[0.75, 0.25, 1e-9], [0.5, 0.25, 0.25]]]).log()
    masks = torch.tensor([[[[0.5]], [[0.2]]]]).logit()
    found = semantic(scores, masks).flatten().tolist()
    assert found == pytest.approx([0.75 / 2 + 0.5 / 5, 0.25 / 2 + 0.25 / 5])


def test_pixels_that_do_not_count_change_nothing() -> None:
    scores, masks, truth = answers()
    truth[:, 9:] = IGNORED
    found = segment_loss(scores, masks, truth, segments_of(truth))
    other = torch.where(truth[:, None] == IGNORED, 9.0, masks)
    pairs, moved = (matched_segments(scores, m, truth, segments_of(truth)) for m in (masks, other))
    assert all(torch.equal(*both) for both in zip(pairs, moved, strict=True))
    # the loss resizes masks, here to their own size
    assert float(segment_loss(scores, other, truth, segments_of(truth))) == pytest.approx(
        float(found), rel=1e-6
    )
    truth[1] = IGNORED
    whole = torch.full_like(truth, IGNORED)  # of which no query has a segment
    assert torch.isfinite(segment_loss(scores, masks, whole, segments_of(whole)))
    assert segments_of(truth).tolist() == [[0, 1, 2], [-1, -1, -1], [2, 3, -1]]
    assert torch.isfinite(segment_loss(scores, masks, truth, segments_of(truth)))


def task_of(**chosen: Any) -> tuple[vitlab.VisionTransformer, Segment]:
    """A small model, and queries that learn beside it."""
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=3,heads=2,mlp=32)/8", classes=0, image_size=24)
    assert isinstance(model, vitlab.VisionTransformer)
    options = Pretext(**{"task": "segment", "mask_queries": 5, "query_blocks": 2} | chosen)
    Segment.check(options, model.config)
    task = Segment(options, model.config, ABOUT, torch.zeros(4, 16), torch.zeros(4))
    task.reset_parameters(torch.Generator().manual_seed(0))
    return model, task


def test_the_loss_reaches_every_weight_and_adds_up_over_passes() -> None:
    model, task = task_of()
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(3, 3, 24, 24, generator=draw)
    truth = torch.randint(-1, 4, (3, 24, 24), generator=draw, dtype=torch.int16)

    def loss_of(own: slice) -> tuple[Tensor, Tensor]:
        loss, figures = task.loss(model, batch_of(images[own], truth[own]), draw)
        return loss * len(images[own]), figures["pixel_accuracy"]

    whole, right = loss_of(slice(3))
    parts = [loss_of(slice(2)), loss_of(slice(2, 3))]
    assert whole.item() == pytest.approx(sum(loss.item() for loss, _ in parts), rel=1e-5)
    assert right.item() == pytest.approx(sum(own.item() for _, own in parts), rel=1e-5)
    whole.backward()
    learned = dict(task.named_parameters())
    without = [name for name, each in learned.items() if each.grad is None or not each.grad.any()]
    assert without == []
    assert task.answering(model, NO_LABELS)(images).argmax(1).shape == truth.shape


def test_losses_are_of_float32_whatever_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = task_of()
    scores, masks, truth = answers()
    monkeypatch.setattr(MaskHead, "forward", lambda *_: [(scores, masks)])
    batch = batch_of(torch.zeros(3, 3, SIDE, SIDE), truth)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = task.loss(model, batch, torch.Generator())
    assert found.item() == segment_loss(scores, masks, truth, segments_of(truth)).item()


def test_a_segmenter_with_queries_is_what_its_file_says(tmp_path: Path) -> None:
    model, task = task_of()
    vitlab.save(model, tmp_path / "model")
    kept = task.answering(model, NO_LABELS)
    save_head(kept, tmp_path)
    images = torch.randn(1, 3, 24, 24)
    found = load_segmenter(tmp_path)
    assert (found.about.queries, found.about.blocks, found.about.layers) == (5, 2, ())
    assert torch.equal(found(images), kept(images))
    shares = found.coarse(images)
    assert shares.shape == (1, 4, 6, 6)  # a patch of 8 pixels is four places


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"query_blocks": 4}, "query_blocks=4, but ViT("),
        ({"mask_queries": 0}, "query_blocks=2 applies only with task=detect or mask_queries"),
        ({"task": "classify", "query_blocks": 3}, "mask_queries=5 applies only with task=segment"),
    ],
)
def test_what_does_not_go_together_is_one_line(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as said:
        task_of(**chosen)
    assert words in str(said.value)
