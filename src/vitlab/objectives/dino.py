"""DINO: the student learns a momentum teacher's answers to other crops of the same image."""

import math
from itertools import pairwise, starmap
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.objectives.crops import BY_PASS, ComparedCrops, crop_views, local_size
from vitlab.objectives.pretext_task import LossFigures, Sum
from vitlab.on_device import widest
from vitlab.optim.averaging import follow
from vitlab.recipes.pretext import Pretext

WARMUP = 0.1  # of the run, until the teacher's temperature is the final one


def momentum_at(step: int, total: int, start: float) -> float:
    """Return the teacher's momentum in a step: from `start` to 1 by a cosine (DINO, section 3.1).

    Args:
        step: from 0
        total: steps of the run
        start: momentum of the first step
    """
    return 1 - (1 - start) * (1 + math.cos(math.pi * step / max(1, total))) / 2


def temperature_at(step: int, total: int, ends: tuple[float, float]) -> float:
    """Return the teacher's temperature in a step: linear over the first tenth of the run.

    DINO warms it up over 30 epochs, whatever the length of the run (appendix C); a share of the run
    is our choice, so that short ones reach the final temperature too.

    Args:
        step: from 0
        total: steps of the run
        ends: the first temperature, and the final one
    """
    first, last = ends
    return first + (last - first) * min(1.0, step / max(1.0, WARMUP * total))


def sharpened(answers: Tensor, center: Tensor, temperature: Tensor | float) -> Tensor:
    """Return a teacher's probabilities: centered, sharpened answers (DINO, section 3.1).

    Args:
        answers: float32 (…, prototypes)
        center: mean of its answers so far, (prototypes,)
        temperature: below the student's
    """
    return ((answers - center) / temperature).softmax(-1)


def balanced(answers: Tensor, temperature: Tensor | float, rounds: int = 3) -> Tensor:
    """Return a teacher's probabilities by Sinkhorn-Knopp: every prototype is used equally often.

    Source: Caron et al., SwAV, 2020, algorithm 1, as DINOv2 uses it (Oquab et al., 2023, section
    4). It is computed on logarithms, so that no temperature overflows.

    Args:
        answers: float32 (N, prototypes)
        temperature: of the answers
        rounds: each of which scales the prototypes, then the images

    Returns:
        (N, prototypes), each row of sum 1; the columns' sums are nearly equal.
    """
    table = answers / temperature
    for _ in range(rounds):
        table = table - table.logsumexp(0, keepdim=True) - math.log(table.shape[1])
        table = table - table.logsumexp(1, keepdim=True) - math.log(max(1, table.shape[0]))
    return table.softmax(-1)


class Projector(nn.Module):
    """Three layers with GELU, a vector of length 1, and its cosines with the prototypes.

    Source: Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021, section
    3.2 and appendix C; the last layer is weight-normalized with a gain of 1 that is not learned
    (facebookresearch/dino, DINOHead with norm_last_layer).

    Args:
        features: of an image, or of a patch
        hidden: units of the first two layers
        bottleneck: of the third
        prototypes: how many answers there are
    """

    def __init__(self, features: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        sizes = pairwise((features, hidden, hidden, bottleneck))
        self.dense = nn.ModuleList(starmap(nn.Linear, sizes))
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw truncated-normal kernels of 0.02 and zero biases; prototypes as a dense layer's."""
        for layer in self.dense:
            assert isinstance(layer, nn.Linear)
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)
        limit = self.prototypes.shape[1] ** -0.5
        nn.init.uniform_(self.prototypes, -limit, limit, generator=generator)

    def forward(self, features: Tensor, frozen: bool = False) -> Tensor:
        """Compute cosines with the prototypes: (…, features) -> (…, prototypes).

        Args:
            features: of images or patches
            frozen: whether the prototypes get no gradient
        """
        first, second, third = self.dense
        values = third(F.gelu(second(F.gelu(first(features)))))
        prototypes = self.prototypes.detach() if frozen else self.prototypes
        return F.linear(F.normalize(values, dim=-1), F.normalize(prototypes, dim=-1))


UNIFORM = 0.02  # nats below those of uniform answers: all prototypes alike
ONE = 0.05  # share of the entropy of uniform answers, of the mean answer: one prototype for all
CLOSE = 0.02  # of the spread of features in random directions


def between_views(taught: Tensor, logs: Tensor) -> Tensor:
    """Return the mean cross-entropy over all pairs of different views (DINO, equation 3).

    Args:
        taught: the teacher's probabilities on the large views, (T, B, prototypes)
        logs: the student's log-probabilities on all views, the large ones first: (V, B, prototypes)
    """
    table = torch.einsum("tbk,vbk->tv", taught, logs)
    pairs = table.numel() - len(taught)
    return (table.diagonal().sum() - table.sum()) / (pairs * taught.shape[1])


def figures_of(taught: Tensor, logs: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Return the means of the figures over a pass.

    Args:
        taught: the teacher's probabilities on both large views, (2, B, prototypes)
        logs: the student's log-probabilities, (views, B, prototypes)
        features: of the teacher, (2 * B, F)
    """
    sure = entropy(taught)
    across = -(taught * logs[:2].flip(0)).sum(-1)
    each = [spread(part) for part in features.chunk(2)]
    return {
        "teacher_entropy": sure.mean(),
        "mean_entropy": entropy(taught.mean((0, 1))),
        "disagreement": (across - sure).mean(),
        "feature_spread": torch.stack(each).mean(),
    }


def entropy(chances: Tensor) -> Tensor:
    """Return the entropy of probabilities in nats: (…, K) -> (…)."""
    return -torch.special.xlogy(chances, chances).sum(-1)


def spread(features: Tensor) -> Tensor:
    """Return how far features of length 1 are spread: 0 if all are one, 1 in random directions.

    The root mean square over the channels of each one's deviation over the images, times the root
    of their number (Chen and He, SimSiam, 2021, section 4.1, figure 2).

    Args:
        features: float32 (B, D)
    """
    unit = F.normalize(features, dim=-1)
    return ((unit - unit.mean(0)) ** 2).sum(-1).mean().sqrt()


def collapse(means: dict[str, float], prototypes: int, centering: str) -> list[str]:
    """Return what to tell of a teacher that tells images no longer apart; one line each.

    Args:
        means: of the task's figures
        prototypes: how many answers there are
        centering: how the teacher is kept from collapsing
    """
    most = math.log(prototypes)
    found = []
    other = "centering=sinkhorn" if centering == "mean" else "a lower lr"
    if means["teacher_entropy"] > most - UNIFORM:
        found.append(
            "the teacher has collapsed to uniform answers: try a lower --teacher-temperature, or "
            "a lower lr"
        )
    if means["mean_entropy"] < ONE * most:
        found.append(
            "the teacher has collapsed to one answer for all images: try a higher "
            f"--teacher-temperature, or {other}"
        )
    if means["feature_spread"] < CLOSE:
        found.append(
            "the teacher's features have collapsed, they are the same for all images: try a lower "
            "lr, or a longer warm-up"
        )
    return found


CENTER = 0.9  # momentum of the center (facebookresearch/dino)


class SelfDistillation(ComparedCrops):
    """Self-distillation with no labels (DINO; Caron et al., 2021, algorithm 1 and equation 3).

    The student sees two large crops and several small ones, the teacher the large ones; the loss is
    the cross-entropy of their answers over all pairs of different crops. The teacher, a moving
    average of the student with its projector, is evaluated and saved. It computes without dropout
    and stochastic depth, and batch norms with their running statistics, which is our choice.

    Sinkhorn-Knopp looks at the images of one pass in one process; the center is that of all.

    The figures, of the teacher: entropy of its answers, and of the mean answer to the images of a
    pass; how far features are spread (`spread`). Between the two: the KL divergence of the
    student's answer to one large crop from the teacher's to the other.
    """

    figures: ClassVar[tuple[str, ...]] = (
        "teacher_entropy", "mean_entropy", "disagreement", "feature_spread"
    )  # fmt: skip
    temperature: Tensor
    center: Tensor

    def __init__(self, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        super().__init__(options, config, guide)
        sizes = (config.features, options.head_width, options.bottleneck, options.prototypes)
        self.projector = Projector(*sizes)
        self.taught_projector = Projector(*sizes).requires_grad_(False)
        self.teacher = build(config, torch.Generator().manual_seed(0)).requires_grad_(False)
        self.teacher.eval()
        self.register_buffer("center", torch.zeros(options.prototypes))
        self.register_buffer("temperature", torch.zeros(()))
        self.momentum, self.frozen = options.momentum_teacher, False
        self._seen: Tensor | None = None
        self.begin(0, 1, 1.0)

    @classmethod
    def views(cls, options: Pretext, config: ModelConfig, augment: Augment) -> tuple[View, ...]:
        """Return two large crops and the small ones."""
        return crop_views(options, config, augment)

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Return the crops, and what is computed by each process for itself."""
        (rows, columns), small = config.size, local_size(options, config)
        count = options.local_crops
        beside = f" and {count} of {small[0]}x{small[1]}" if count else ""
        lines = [f"crops of each image: 2 of {rows}x{columns} pixels{beside}"]
        if options.centering == "sinkhorn":
            lines.append(f"Sinkhorn-Knopp looks {BY_PASS}")
        return lines

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the projector, which is the teacher's too."""
        self.projector.reset_parameters(generator)
        follow(self.taught_projector, self.projector, 0)

    def start(self, model: Model) -> None:
        """Begin with the student as the teacher, and as the anchor."""
        super().start(model)
        follow(self.teacher, model, 0)

    def train(self, mode: bool = True) -> "SelfDistillation":
        """Change the mode of the student's projector; the teacher always evaluates."""
        super().train(mode)
        self.teacher.eval()
        return self

    def begin(self, step: int, total: int, epoch: float) -> None:
        """Set the teacher's momentum and temperature, and whether the prototypes learn."""
        options = self.options
        self.momentum = momentum_at(step, total, options.momentum_teacher)
        self.temperature.fill_(temperature_at(step, total, options.teacher_temperature))
        self.frozen = step < options.freeze_last * epoch

    def loss(self, model: Model, batch: Batch, generator: torch.Generator) -> LossFigures:
        """Return the loss over pairs of crops, with those that the options add, and the figures."""
        large, seen, moved = self.crops(model, batch)
        with torch.no_grad():
            taught, features = self._teach(large)
        answers, count = [self.projector(each, self.frozen) for each in seen], len(batch)
        with torch.autocast(large.device.type, enabled=False):
            sharp = torch.cat(answers).float() / self.options.student_temperature
            logs = F.log_softmax(sharp, dim=-1).unflatten(0, (-1, count))
            taught = taught.unflatten(0, (2, count))
            loss = between_views(taught, logs) + self.options.anchor * moved
            figures = figures_of(taught, logs.detach(), features.float())
        return loss, {name: value * count for name, value in figures.items()}

    def _teach(self, large: Tensor) -> tuple[Tensor, Tensor]:
        """Return the teacher's probabilities for images, and its features."""
        features = self.teacher.features(large)
        answers = self.taught_projector(features).float()
        with torch.autocast(large.device.type, enabled=False):
            if self.options.centering == "sinkhorn":
                return balanced(answers, self.temperature), features
            if self.training:
                dtype = widest(answers.device)
                number = answers.new_tensor([len(answers)], dtype=dtype)
                own = torch.cat([answers.sum(0, dtype=dtype), number])
                self._seen = own if self._seen is None else self._seen + own
            return sharpened(answers, self.center, self.temperature), features

    def stepped(self, model: Model, add: Sum) -> None:
        """Let the teacher follow the student, and the center the teacher's answers."""
        follow(self.teacher, model, self.momentum)
        follow(self.taught_projector, self.projector, self.momentum)
        if self.options.centering == "sinkhorn":
            return
        center, sums = self.center, self._seen
        if sums is None:
            sums = center.new_zeros(len(center) + 1, dtype=widest(center.device))
        add(sums)
        mean = (sums[:-1] / sums[-1].clamp(min=1)).float()
        center.lerp_(torch.where(sums[-1] > 0, mean, center), 1 - CENTER)

    def drop(self) -> None:
        """Forget the answers that were collected."""
        self._seen = None

    def kept(self, model: Model) -> Model:
        """Return the teacher, with the student's provenance."""
        self.teacher.provenance, self.teacher.source = model.provenance, model.source
        self.teacher.seen = model.seen
        return self.teacher

    def warnings(self, means: dict[str, float]) -> list[str]:
        """Tell of a collapse."""
        return collapse(means, self.options.prototypes, self.options.centering)
