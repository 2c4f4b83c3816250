"""Relative positions of one dimension."""

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import OwnOrShared


class Relative(OwnOrShared):
    """A bias on the logits from a query and the 1-D offset to a key (ViT paper, D.4, relative).

    The original query attends to an embedding of the offset p_q - p_k between places in raster
    order (the class token is place 0, then the registers), scaled like the main attention. The
    paper leaves open whether heads share the embeddings; here they do, as in Shaw et al. (2018).
    """

    name = "relative"
    uses = ("positions_at",)
    undecayed = ("table",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width = config.width // config.heads
        self.table = nn.Parameter(torch.empty(2 * config.length - 1, width))

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse images of different sizes."""
        OwnOrShared.check(config)
        if config.fit == "native":
            raise OptionError(
                "positions=relative hold for one grid only, not for fit=native: use none, 1d, 2d, "
                "bias or rope"
            )

    def bias(self, q: Tensor) -> Tensor:
        """Return what is added to the scaled logits: queries (B, h, N, d) -> (B, h, N, N)."""
        n = self.config.length
        logits = (q * q.shape[-1] ** -0.5) @ self.table.to(q.dtype).T  # (B, h, N, 2N - 1)
        place = torch.arange(n, device=q.device)
        offset = place[:, None] - place[None, :] + n - 1  # p_q - p_k, from 0
        return logits.gather(-1, offset.expand(*q.shape[:2], -1, -1))

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Refuse another grid, on which 1-D offsets mean other places."""
        if old.grid != new.grid:
            raise OptionError(
                "positions=relative cannot be resized, since its 1-D offsets hold for one grid "
                f"only: keep image_size={old.image_size}"
            )
        return tensors
