"""Gram anchor: similarities of an image's patches stay near those of the weights it starts from.

Continued pre-training moves features to fit new images, and forgets what they were. What is kept
here is how alike the patches of an image are, which leaves the features free to turn.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.recipes.pretext import Pretext


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move a teacher's weights towards the student's: m teacher + (1 - m) student; copy buffers.

    A momentum of 0 makes them the student's, to the bit.
    """
    own: list[Tensor] = list(teacher.parameters())
    new: list[Tensor] = [weight.detach() for weight in student.parameters()]
    if momentum == 0:
        torch._foreach_copy_(own, new)
    else:
        torch._foreach_lerp_(own, new, 1 - momentum)
    for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
        mine.copy_(theirs)


class GramAnchor(nn.Module):
    """The loss of DINOv3's Gram anchoring (Siméoni et al., 2025, section 4.2, equation 2).

    There the anchor is an earlier teacher; here it is the model as the run begins. Similarities
    are those within an image, as in the paper's equation, and their squared difference is the mean
    over pairs, as in its code.

    Args:
        config: of the model
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        model = build(config, torch.Generator().manual_seed(0)).requires_grad_(False)
        assert isinstance(model, VisionTransformer)
        self.model = model.eval()

    def start(self, model: Model) -> None:
        """Take over the weights that the run begins with."""
        follow(self.model, model, 0)

    def train(self, mode: bool = True) -> "GramAnchor":
        """Always evaluate."""
        return super().train(False)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss, a scalar.

        Args:
            images: as the model saw them, (B, channels, H, W)
            tokens: what it made of them, prefix and patches, (B, N, D)
        """
        with torch.no_grad():
            before = self.model.encode(images)
        prefix = self.model.config.prefix
        with torch.autocast(images.device.type, enabled=False):
            return (_alike(tokens[:, prefix:]) - _alike(before[:, prefix:])).square().mean()


def anchor_of(options: Pretext, config: ModelConfig) -> GramAnchor | None:
    """Return the anchor that a recipe asks for, if any, of a model that has patches."""
    if not options.anchor:
        return None
    assert isinstance(config, ViTConfig)
    return GramAnchor(config)


def _alike(patches: Tensor) -> Tensor:
    """Return the cosine of each pair of an image's patches: (B, P, D) -> (B, P, P)."""
    unit = F.normalize(patches.float(), dim=-1)
    return unit @ unit.mT
