"""The one door to data, asked for boxes, masks and numbers: shorter calls for tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vitlab.data.open import Opened, open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.request import MaskReading
from vitlab.data.splits import Splits
from vitlab.models.heads.mask_classes import MaskClasses


def open_masks(
    data: Any,
    class_names: str = "",
    ignore: int | None = -1,
    columns: Columns | None = None,
    like: MaskClasses | None = None,
) -> Opened:
    return open_images(
        data, "mask", columns=columns, masks=MaskReading(class_names, ignore, like=like)
    )


def open_boxes(options: Data, classes: Sequence[str] = ()) -> Splits:
    opened = open_images(options.data, "boxes", classes=classes, columns=options)
    return split_opened(opened, options.test_fraction)


def open_targets(data: Any, names: Sequence[str], options: Data) -> Splits:
    return open_to_learn(data, "numbers", replace(options, label_column=tuple(names)))
