"""LeJEPA and VISReg: crops of an image agree, and embeddings are kept an isotropic Gaussian.

Nothing else keeps all images from one embedding: no teacher, no stop-gradient, no schedule.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.crops import BY_PASS, ComparedCrops, local_size
from vitlab.objectives.dino import CLOSE, spread
from vitlab.objectives.pretext_task import LossFigures
from vitlab.recipes.pretext import Pretext

KNOTS, FARTHEST = 17, 3.0  # where characteristic functions are compared: from 0 to 3


class LeJEPA(ComparedCrops):
    """A joint-embedding predictive architecture without heuristics (arXiv 2511.08544, algorithm 2).

    A projector embeds two large crops and several small ones of each image. The loss is the squared
    distance of every embedding from the mean of the large crops' (`view_distance`), and what the
    embeddings of a pass lack to be an isotropic Gaussian (`non_normality`), weighted 1 - w and w.
    The second is SIGReg, or VISReg's three terms (arXiv 2606.02572). Both look at the images of one
    pass in one process, crop by crop; the papers' code looks at those of all processes.
    """

    figures: ClassVar[tuple[str, ...]] = ("view_distance", "non_normality", "feature_spread")

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(options, config, guide)
        self.projector = EmbeddingHead(config.features, options.head_width, options.embedding)

    @classmethod
    def views(cls, options: Pretext, config: ModelConfig, augment: Augment) -> tuple[View, ...]:
        """Return two large crops and the small ones, all augmented alike."""
        large = View(config.size, (augment.area, 1.0), augment)
        small = View(local_size(options, config), options.local_area, augment)
        return (large, large, *[small] * options.local_crops)

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Return what depends on the images of a pass."""
        return [f"the regularizer looks {BY_PASS}"]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the projector."""
        self.projector.reset_parameters(generator)

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the weighted loss of a batch, and the figures."""
        _, features, moved = self.crops(model, batch)
        embedded = self.projector(torch.cat(features)).unflatten(0, (-1, len(batch)))
        options, regularizer = self.options, REGULARIZERS[self.options.regularizer]
        with torch.autocast(embedded.device.type, enabled=False):
            embedded = embedded.float()  # (V, B, E)
            lines = directions(options.embedding, options.slices, generator)
            apart = (embedded - embedded[:2].mean(0)).square().mean()
            lacking = regularizer(embedded, lines)
            weight = options.regularizer_weight
            loss = (1 - weight) * apart + weight * lacking
            loss = loss + options.anchor * moved
            spreads = [spread(each.float()) for each in features[0].detach().chunk(2)]
        means = (apart.detach(), lacking.detach(), torch.stack(spreads).mean())
        return loss, {k: v * len(batch) for k, v in zip(self.figures, means, strict=True)}

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Tell of a collapse."""
        if means["feature_spread"] >= CLOSE:
            return []
        return [
            "the features have collapsed, they are the same for all images: try a higher "
            "--regularizer-weight, or a lower lr"
        ]


class EmbeddingHead(nn.Module):
    """The projector: three dense layers, batch norm and ReLU after the first two.

    Args:
        features: of an image
        hidden: units of the first two layers
        embedding: of the third
    """

    def __init__(self, features: int, hidden: int, embedding: int) -> None:
        super().__init__()
        # a norm takes a bias out again, whose gradient would be noise
        first, second = (nn.Linear(n, hidden, bias=False) for n in (features, hidden))
        self.dense = nn.ModuleList([first, second, nn.Linear(hidden, embedding)])
        # of images, which several processes share as they do a model's
        self.norms = nn.ModuleList(nn.BatchNorm2d(hidden) for _ in range(2))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as PyTorch's dense layers do; norms are made to change nothing."""
        for layer in self.dense:
            assert isinstance(layer, nn.Linear)
            limit = layer.in_features**-0.5
            for weight in layer.parameters():
                nn.init.uniform_(weight, -limit, limit, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """Embed the features of images: (N, features) -> (N, embedding)."""
        *hidden, last = self.dense
        for layer, norm in zip(hidden, self.norms, strict=True):
            features = F.relu(norm(layer(features)[..., None, None])[..., 0, 0])
        embedded: Tensor = last(features)
        return embedded


@torch.compiler.disable  # type: ignore[untyped-decorator]  # no generator in a graph
def directions(embedding: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw directions, uniform on the sphere: (embedding, count)."""
    drawn = torch.randn(embedding, count, generator=generator, device=generator.device)
    return F.normalize(drawn, dim=0)


def sigreg(embedded: Tensor, lines: Tensor) -> Tensor:
    """Return the sketched isotropic Gaussian regularization (LeJEPA, algorithm 1).

    In each direction, the squared difference between the characteristic functions of the
    embeddings and of the standard normal distribution, integrated under a Gaussian window (the
    Epps-Pulley statistic), times the number of images. The window is symmetric, so that half of it
    is integrated and doubled, from 0 to 3, as in the authors' MINIMAL.md.

    Args:
        embedded: float32 (V, B, E)
        lines: directions, (E, S)
    """
    knots = torch.linspace(0, FARTHEST, KNOTS, device=embedded.device)
    normal = (-knots.square() / 2).exp()  # its characteristic function, and the window
    angles = (embedded @ lines)[..., None] * knots  # (V, B, S, knots)
    off = (angles.cos().mean(1) - normal).square() + angles.sin().mean(1).square()
    return 2 * embedded.shape[1] * torch.trapezoid(off * normal, knots).mean()


def visreg(embedded: Tensor, lines: Tensor) -> Tensor:
    """Return VISReg's terms: scale, shape and center of the embeddings, each weighted 1.

    Scale: squared difference of each channel's deviation from 1. Shape: with the deviations divided
    out (no gradient passes there), the squared differences of the sorted projections from the
    quantiles of the normal distribution (sliced Wasserstein). Center: the squared mean.

    Args:
        embedded: float32 (V, B, E)
        lines: directions, (E, S)
    """
    count, mean = embedded.shape[1], embedded.mean(1, keepdim=True)
    centered = embedded - mean
    deviation = torch.linalg.vector_norm(centered, dim=1, keepdim=True) / math.sqrt(count)
    deviation = deviation.clamp(min=1e-6)
    ordered = (centered / deviation.detach() @ lines).sort(dim=1).values  # (V, B, S)
    ranks = torch.arange(1, count + 1, device=embedded.device) / (count + 1)
    shape = (ordered - torch.special.ndtri(ranks)[:, None]).square().mean()
    return (deviation - 1).square().mean() + shape + mean.square().mean()


REGULARIZERS = {"sigreg": sigreg, "visreg": visreg}
