"""Runs that answer with masks, boxes or numbers, of small models with random weights."""

from pathlib import Path

import numpy as np
import torch

import vitlab
from vitlab.models.heads.detect import BoxClasses, BoxHead, Detector
from vitlab.models.heads.regress import Regressor, Targets
from vitlab.models.heads.segment import DenseClasses, MaskHead, PatchLayer, Segmenter
from vitlab.weights.save_head import save_head

SMALL = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
SHAPES = ("ground", "disk", "square")
VALUES = (0, 1, 7)  # of the shapes in a mask


def backbone(seed: int) -> vitlab.VisionTransformer:
    """A model without classes, for images of 16 x 16 pixels as the three heads see them."""
    generator = torch.Generator().manual_seed(seed)
    how = {"fit": "squash", "crop": 1.0}
    return vitlab.create(SMALL, classes=0, image_size=16, generator=generator, **how).eval()


def segmenter(scale: float = 1.0) -> Segmenter:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 32, generator=generator)
    about = DenseClasses(SHAPES, VALUES, 255, (1, 2), scale)
    return Segmenter(backbone(1), PatchLayer(about, weight, torch.zeros(3)))


def query_segmenter() -> Segmenter:
    model, about = backbone(4), DenseClasses(SHAPES, VALUES, 255, queries=4, blocks=1)
    head = MaskHead(model.config, about)
    head.reset_parameters(torch.Generator().manual_seed(4))
    return Segmenter(model, head)


def detector() -> Detector:
    model = backbone(2)
    head = BoxHead(model.config, BoxClasses(("cat", "dog"), 4, 1))
    head.reset_parameters(torch.Generator().manual_seed(2))
    return Detector(model, head.eval())


def regressor() -> Regressor:
    draw = np.random.default_rng(3)
    weight, bias = draw.normal(size=(4, 16)), draw.normal(size=4)
    about = Targets(("age", "height"), spread=True)
    return Regressor(backbone(3), about, weight, bias, np.array([[40.0, 170.0], [10.0, 9.0]]))


def save_heads(root: Path) -> dict[str, Path]:
    """Write a run of each kind, two of masks; return their folders."""
    made = {"masks": segmenter(), "queries": query_segmenter()}
    made |= {"boxes": detector(), "numbers": regressor()}
    for name, head in made.items():
        (root / name).mkdir(parents=True)
        vitlab.save(head.model, root / name / "model")
        save_head(head, root / name)
    return {name: root / name for name in made}
