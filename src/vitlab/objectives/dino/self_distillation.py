"""DINO: the student learns a momentum teacher's answers to other crops of the same image."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.loading.batches import Batch
from vitlab.data.loading.crops import View
from vitlab.data.settings import Augment
from vitlab.device import widest
from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.anchor import anchor_of
from vitlab.objectives.dino.centering import balanced, sharpened
from vitlab.objectives.dino.crops_and_models import (
    BY_PASS,
    check_crops,
    crop_views,
    local_size,
)
from vitlab.objectives.dino.projector import Projector
from vitlab.objectives.dino.schedules import follow, momentum_at, temperature_at
from vitlab.objectives.dino.view_loss import between_views, collapse, figures_of
from vitlab.objectives.objective_module import Sum
from vitlab.objectives.pretext_task import PretextTask
from vitlab.recipes.pretext import Pretext

CENTER = 0.9  # momentum of the center (facebookresearch/dino)


class SelfDistillation(PretextTask):
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
        "teacher_entropy",
        "mean_entropy",
        "disagreement",
        "feature_spread",
    )
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
        self.anchor = anchor_of(options, config)
        self.momentum, self.frozen = options.momentum_teacher, False
        self._seen: Tensor | None = None
        self.begin(0, 1, 1.0)

    @classmethod
    def check(cls, options: Pretext, config: ModelConfig, guide: Model | None = None) -> None:
        """Refuse small crops that the patch does not divide, and models that take one size only.

        Raises:
            OptionError: the message says what would work.
        """
        check_crops(options, config)

    @classmethod
    def views(cls, options: Pretext, config: ModelConfig, augment: Augment) -> tuple[View, ...]:
        """Return two large crops and the small ones."""
        return crop_views(options, config, augment)

    @classmethod
    def remarks(cls, options: Pretext, config: ModelConfig) -> list[str]:
        """Return the crops, and what is computed by each process for itself."""
        (rows, columns), small, count = (
            config.size,
            local_size(options, config),
            options.local_crops,
        )
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
        follow(self.teacher, model, 0)
        if self.anchor is not None:
            self.anchor.start(model)

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

    def loss(
        self, model: Model, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over pairs of crops, with those that the options add, and the figures."""
        images = [each.images for each in (batch, *batch.views)]
        views = [each for each in images if isinstance(each, Tensor)]
        large, count = torch.cat(views[:2]), len(batch)
        with torch.no_grad():
            taught, features = self._teach(large)
        moved: Tensor | float = 0.0
        if self.anchor is None:
            seen = model.features(large)
        else:
            assert isinstance(model, VisionTransformer)
            tokens = model.encode(large)
            seen, moved = model.head.features(tokens), self.anchor(large, tokens)
        answers = [self.projector(seen, self.frozen)]
        if views[2:]:
            answers.append(self.projector(model.features(torch.cat(views[2:])), self.frozen))
        with torch.autocast(large.device.type, enabled=False):
            logs = self._logs(torch.cat(answers)).unflatten(0, (-1, count))
            taught = taught.unflatten(0, (2, count))
            loss = between_views(taught, logs) + self.options.anchor * moved
            figures = figures_of(taught, logs.detach(), features.float())
        return loss, {name: value * count for name, value in figures.items()}

    def _logs(self, answers: Tensor) -> Tensor:
        """Return the student's log-probabilities of answers, (…, prototypes)."""
        return F.log_softmax(answers.float() / self.options.student_temperature, dim=-1)

    def _teach(self, large: Tensor) -> tuple[Tensor, Tensor]:
        """Return the teacher's probabilities for images, and its features."""
        features = self.teacher.features(large)
        answers = self.taught_projector(features).float()
        with torch.autocast(large.device.type, enabled=False):
            if self.options.centering == "sinkhorn":
                return balanced(answers, self.temperature), features
            if self.training:
                own = _summed(answers)
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


def _summed(answers: Tensor) -> Tensor:
    """Return the sum of answers, and their number: (N, prototypes) -> (prototypes + 1,)."""
    dtype = widest(answers.device)
    count = torch.full((1,), len(answers), dtype=dtype, device=answers.device)
    return torch.cat([answers.sum(0, dtype=dtype), count])
