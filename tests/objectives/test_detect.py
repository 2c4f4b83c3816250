"""Detection by queries: DETR's matching and losses against transformers', and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from conftest import call
from oracles import peers
from vitlab.data.box_geometry import overlap
from vitlab.errors import OptionError, WeightsError
from vitlab.models.heads.detect import BoxClasses, BoxHead, Detector, corners, first_centers
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.detect import centered, detection_loss, matched
from vitlab.weights.detector import load_detector
from vitlab.weights.save_head import save_head

CLASSES, QUERIES = 4, 7


def answers(images: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, boxes and objects: three, none and one of them, padded."""
    draw = torch.Generator().manual_seed(images)
    scores = torch.randn(images, QUERIES, CLASSES + 1, generator=draw)
    boxes = torch.rand(images, QUERIES, 4, generator=draw) * 0.4 + 0.2
    objects = torch.zeros(images, 4, 5)
    objects[..., 0] = -1
    for number, count in zip(range(images), (3, 0, 1), strict=False):
        own = torch.rand(count, 4, generator=draw) * 0.4 + 0.3
        objects[number, :count, 0] = torch.randint(CLASSES, (count,), generator=draw).float()
        objects[number, :count, 1:] = corners(own)
    return scores, boxes, objects


def test_matching_and_losses_are_those_of_transformers() -> None:
    """Image by image: DETR's means are over a batch, ours over an image and then over images."""
    peers.transformers()
    peers.prepare_torchvision()
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")
    scores, boxes, objects = answers()
    matcher = theirs.HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
    criterion = theirs.ImageLoss(matcher, CLASSES, eos_coef=0.1, losses=["labels", "boxes"])
    totals = []
    for number in range(len(scores)):
        one = slice(number, number + 1)
        own = objects[number][objects[number, :, 0] >= 0]
        pairs = matched(scores[one], boxes[one], objects[one])
        loss = detection_loss(scores[one], boxes[one], objects[one], pairs)
        totals.append(loss)
        if not len(own):
            continue
        given = {"logits": scores[one], "pred_boxes": boxes[one]}
        target = [{"class_labels": own[:, 0].long(), "boxes": centered(own[:, 1:])}]
        [(query, which)] = matcher(given, target)
        assert [each.tolist() for each in pairs[1:]] == [query.tolist(), which.tolist()]
        found = criterion(given, target)
        wanted = found["loss_ce"] + 5 * found["loss_bbox"] + 2 * found["loss_giou"]
        assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    whole = detection_loss(scores, boxes, objects, matched(scores, boxes, objects))
    assert float(whole) == pytest.approx(float(torch.stack(totals).mean()), rel=1e-5)


def test_overlaps_of_known_boxes() -> None:
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0]]).repeat(3, 1)
    other = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [2.0, 2.0, 4.0, 4.0]])
    iou, giou = overlap(one, other)
    assert iou.tolist() == pytest.approx([1, 1 / 3, 0])
    assert giou.tolist() == pytest.approx([1, 1 / 3, -0.5])


def test_first_boxes_cover_the_image() -> None:
    assert first_centers(4).tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    spread = first_centers(12)
    assert len({tuple(each) for each in spread.tolist()}) == 12
    assert spread.min() == 0.125
    assert spread.max() == 0.875


def head_of(model: Model, blocks: int = 2) -> BoxHead:
    head = BoxHead(model.config, BoxClasses(("a", "b"), 5, blocks))
    head.reset_parameters(torch.Generator().manual_seed(0))
    return head


def test_queries_in_all_blocks_are_extra_tokens() -> None:
    """The road of `encode(extra=)`, whose extra tokens pass every block."""
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", image_size=16, fit="squash")
    model.eval()
    head, images = head_of(model).eval(), torch.randn(2, 3, 16, 16)
    assert isinstance(model, VisionTransformer)
    tokens, _ = model.begin(images)
    queries = tokens[:, head.under(model.config, images)] + head.queries
    leaving = model.encode(images, extra=queries)[:, -5:]
    scores, _ = head(model, images)[-1]
    torch.testing.assert_close(head.classify(leaving), scores)


def test_a_detector_is_what_its_file_says(tmp_path: Path) -> None:
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", image_size=16, fit="squash")
    detector = Detector(model, head_of(model, 1))
    vitlab.save(model, tmp_path / "model")
    save_head(detector, tmp_path)
    with pytest.raises(WeightsError, match=r"has no detect.safetensors: run vitlab train"):
        load_detector(tmp_path / "model")
    assert np.isfinite(detector(torch.zeros(1, 3, 16, 16))[0].detach().numpy()).all()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rotate": 9}, "rotate would not move the boxes of task=detect: leave it out"),
    ({"mixup": 0.2}, "mixup needs labels"),
    ({"mask_ratio": 0.4}, "mask_ratio=0.4 applies only with task="),
]


@pytest.mark.parametrize(("chosen", "words"), WRONG, ids=[str(each) for each, _ in WRONG])
def test_options_that_boxes_do_not_follow_are_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as said:
        vitlab.recipe("detect", **chosen)
    assert words in str(said.value)


def test_weights_see_the_whole_image() -> None:
    part = vitlab.recipe("detect", "photos", weights="facebook/dinov2-small").model
    assert (part.chosen()["fit"], part.chosen()["crop"]) == ("squash", 1.0)


LINES = [
    ("train digit-scenes", "digit-scenes has boxes, not classes of images: pass --task detect"),
    ("train digit-scenes --task detect --fit crop", "set fit=squash and crop=1"),
    ("train digit-scenes --task detect --query-blocks 5", "query_blocks=5, but ViT("),
    ("train digit-scenes --task detect --object-queries 5", "pass --object-queries 6"),
    ("train digit-scenes --task detect --model BiT-R50x1", "needs a Vision Transformer"),
    ("train digit-scenes --task detect --recipe small", "task=detect, but recipe small is for"),
    ("pretrain digit-scenes --recipe detect", "use vitlab train"),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_what_cannot_be_is_said_in_one_line(
    line: str, words: str, few_scenes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, *line.split(), "--out", str(tmp_path / "run"))
    assert code == 2, err
    assert words in err.splitlines()[-1], err
    assert not (tmp_path / "run").exists()
