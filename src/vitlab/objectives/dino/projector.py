"""The projector from features to answers over prototypes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        self.dense = nn.ModuleList(
            [
                nn.Linear(features, hidden),
                nn.Linear(hidden, hidden),
                nn.Linear(hidden, bottleneck),
            ]
        )
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
