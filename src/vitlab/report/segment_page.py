"""Report of a run that segments: figures, a table of classes, the worst images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitlab.data.images import Images
from vitlab.data.target import IGNORED
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.mask_figures import FIGURES, Tested, iou
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.segmentation import Scene, Segmented, segment, voc_palette
from vitlab.models.heads.mask_classes import Truth
from vitlab.models.heads.segment import Segmenter
from vitlab.progress import named_if_slow
from vitlab.report.headline import card_of
from vitlab.report.page import (
    Cards,
    Columns,
    Prose,
    ReportTable,
    Section,
    Thumbnail,
    Thumbnails,
    common_folder,
    table_of,
)
from vitlab.report.pretext_report import write_pretext_report
from vitlab.report.thumbnails import data_uri, in_colors
from vitlab.runs.run_folder import RunFolder
from vitlab.units import percent

WORST, SIDE, COVER = 12, 320, 0.55  # images, pixels of their longer side, and how much a mask hides
TRIED = 40  # heads that are listed


@named_if_slow("drawing the page")
def write_segmented(
    folder: RunFolder,
    segmenter: Segmenter,
    test: Images,
    tested: Tested,
    figures: dict[str, Any],
    compute: Compute,
) -> Path:
    """Write the report of a head that was fitted; return the file.

    Args:
        folder: of the run
        segmenter: of the run
        test: the images that it was tested on
        tested: on them
        figures: of the run, by the keys of the command's JSON
        compute: where

    Raises:
        DiskError: the file cannot be written.
    """
    tried = Section("heads", "Heads that were tried", [_tried(figures["tried"])])
    own = [*segment_sections(segmenter, test, tested, compute), tried]
    shown = figures | {"images": figures["train_images"]}
    return write_pretext_report(folder, segmenter.model, shown, {}, figures["notes"], own)


def segment_sections(
    segmenter: Segmenter, test: Images, tested: Tested, compute: Compute
) -> list[Section]:
    """Return figures, the worst images and classes, as `write_segmented` takes them."""
    figures = tested.figures
    cards = [
        card_of(METRICS[name], value, figures["intervals"].get(name))
        for name in FIGURES
        if (value := figures[name]) is not None
    ]
    worst = _worst(segmenter, test, tested, compute)
    return [
        Section("figures", "Figures", [Cards(cards)], folded=False),
        Section("worst", "Images with the lowest IoU", worst, folded=False),
        Section("classes", "Classes", [_classes(figures["classes"])], folded=False),
    ]


def _classes(rows: Sequence[dict[str, Any]]) -> ReportTable:
    """Return the table of the classes, the worst first."""
    shown = sorted(rows, key=lambda row: 2.0 if row["iou"] is None else row["iou"])
    columns: Columns = [("class", [row["class"] for row in shown])]
    for key, title in (("iou", "IoU"), ("boundary_iou", "boundary IoU")):
        columns.append((title, ["–" if row[key] is None else percent(row[key]) for row in shown]))
    for key, title in (("pixels", "true pixels"), ("images", "images")):
        columns.append((title, [f"{row[key]:,}" for row in shown]))
    return table_of("Classes", columns)


def _tried(rows: Sequence[dict[str, Any]]) -> ReportTable:
    """Return the table of heads, the best first."""
    cells = [
        (row["head"], ", ".join(map(str, row["layers"])), f"{row['l2']:g}", percent(row["miou"]))
        for row in sorted(rows, key=lambda row: -row["miou"])[:TRIED]
    ]
    note = "mIoU is of pixels drawn of held-out training images."
    return ReportTable("Heads", ("head", "blocks", "l2", "mIoU"), cells, 0, note, texts=2)


def _worst(
    segmenter: Segmenter, test: Images, tested: Tested, compute: Compute
) -> list[Prose | Thumbnails]:
    """Return the images with the lowest mean IoU: the mask beside the prediction."""
    found = iou(tested.counts[..., :3].astype(np.float64))
    there = tested.counts[..., 2] > 0  # of an image, the classes that are in it
    scores = np.where(there, found, 0).sum(1) / np.maximum(there.sum(1), 1)
    order = np.argsort(np.where(there.any(1), scores, 2), kind="stable")[:WORST]
    worst, names, items = test.take(np.array(tested.indices)[order]), segmenter.about.classes, []
    folder = common_folder(map(worst.name, range(len(worst))))
    for each, score in zip(segment(segmenter, worst, compute), scores[order], strict=True):
        if isinstance(each, Segmented) and (truth := each.scene.truth) is not None:
            both = tuple(overlay(each.scene, labels) for labels in (truth, each.predicted))
            classes = ", ".join(names[n] for n in np.unique(each.predicted))
            name = worst.name(each.scene.index).removeprefix(folder)
            items.append(Thumbnail(both, f"IoU {percent(float(score))}", classes, name))
    text = "Left the mask, right the prediction; pixels that do not count are left clear."
    return [Prose(text), Thumbnails(items, "wide")]


def overlay(scene: Scene, labels: Truth) -> str:
    """Return an image under its classes in VOC's colors, as a data URI."""
    photo = Image.fromarray(in_colors(scene.pixels)).convert("RGB")
    photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    numbers = np.asarray(Image.fromarray(labels).resize(photo.size, Image.Resampling.NEAREST))
    colors = voc_palette()[(numbers + 1) % 256]  # no class is black
    mixed = Image.blend(photo, Image.fromarray(colors), COVER)
    clear = Image.fromarray(numbers == IGNORED)
    return data_uri(Image.composite(photo, mixed, clear), "JPEG")
