"""Relative positions within attention: a bias for each offset of two tokens, 2-D (BEiT) or 1-D."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.positions.positions import Inner, OwnOrShared
from vitlab.on_device import exact, sent

# Rows and columns to the patch that a head starts with: sides first, then corners
NEIGHBORS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
FAINT = -12.0  # the least bias at the start: 6e-6 of the attention, which can still grow


class Bias(OwnOrShared):
    """A learned bias on the logits for each 2-D offset of query and key and each head (BEiT).

    The last three rows of the table, (offsets, heads), are for a class token: as the query, as the
    key, and with itself.
    """

    name = "bias"
    undecayed = ("table",)
    places: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        (rows, columns), tokens = config.grid, config.length
        offsets = (2 * rows - 1) * (2 * columns - 1) + 3 * config.has_token
        self.table = nn.Parameter(torch.empty(offsets, config.heads))
        places = torch.empty(tokens, tokens, dtype=torch.int64)
        self.register_buffer("places", places, persistent=False)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse what has no 2-D offset."""
        Inner.check(config)
        if config.positions_at == "every":
            raise OptionError(
                f"positions={config.positions} has a table per block with positions_at=stem, and "
                "one table with positions_at=shared: use one of these, not every"
            )
        if config.registers:
            raise OptionError(
                f"positions={config.positions} has no offset for registers: set registers=0"
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start at zero, as the official code does, or with `bias_locality` near the patch.

        Then head h starts with the attention of a convolution for one offset, as the positional
        attention of ConViT does (d'Ascoli et al., 2021, section 3): eight heads see the eight
        neighbors, further ones the same again. A class token's rows start at zero in any case.
        """
        nn.init.zeros_(self.table)
        if self.config.bias_locality:
            with torch.no_grad():
                self.near().copy_(self.config.bias_locality * -self._distances()).clamp_(FAINT)
        self.refresh()

    def near(self) -> Tensor:
        """Return the rows of the table for pairs of patches, (offsets, heads), sharing memory."""
        rows, columns = self.config.grid
        return self.table[: (2 * rows - 1) * (2 * columns - 1)]

    def _distances(self) -> Tensor:
        """Return each offset's squared distance from each head's neighbor, (offsets, heads)."""
        (rows, columns), device = self.config.grid, self.table.device
        down = torch.arange(1 - rows, rows, device=device).repeat_interleave(2 * columns - 1)
        right = torch.arange(1 - columns, columns, device=device).repeat(2 * rows - 1)
        first = torch.tensor(NEIGHBORS, device=device)
        ahead = first[torch.arange(self.config.heads, device=device) % len(first)]
        return (down[:, None] - ahead[:, 0]) ** 2 + (right[:, None] - ahead[:, 1]) ** 2

    def refresh(self) -> None:
        """Compute which row of the table each pair of tokens takes, (N, N)."""
        (rows, columns), device = self.config.grid, self.places.device
        row = torch.arange(rows, device=device).repeat_interleave(columns)
        column = torch.arange(columns, device=device).repeat(rows)
        down = row[:, None] - row[None, :] + rows - 1
        right = column[:, None] - column[None, :] + columns - 1
        places = down * (2 * columns - 1) + right
        if self.config.has_token:
            last = len(self.table)
            places = F.pad(F.pad(places, (1, 0), value=last - 2), (0, 0, 1, 0), value=last - 3)
            places[:1, :1].fill_(last - 1)  # an assignment would wait for a GPU
        self.places = places

    def bias(self, q: Tensor) -> Tensor:
        """Return what is added to the scaled logits: queries (B, h, N, d) -> (1, h, N, N).

        Heads of several branches side by side have the same biases, branch by branch.
        """
        bias = self.table[self.places].permute(2, 0, 1)[None].to(q.dtype)
        return bias.repeat(1, q.shape[1] // bias.shape[1], 1, 1)

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Spread the old offsets over the new range; the class token's rows stay."""
        return {"table": resample_offsets(tensors["table"], old.grid, new.grid)}


def resample_offsets(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Return a table of biases for another grid: (offsets, heads) -> (new offsets, heads).

    Near offsets matter most, so the old ones are spread over the new range in a geometric
    progression, as BEiT's code does for fine-tuning at a higher resolution, and read off linearly.
    """
    if old == new:
        return table
    extra = len(table) - (2 * old[0] - 1) * (2 * old[1] - 1)
    square = exact(table[: len(table) - extra]).unflatten(0, (2 * old[0] - 1, 2 * old[1] - 1))
    down, right = (sent(_spread(*sizes), square.device) for sizes in zip(old, new, strict=True))
    resized = torch.einsum("ai,bj,ijh->abh", down, right, square).flatten(0, 1)
    return torch.cat([resized.to(table), table[len(table) - extra :]])


def _spread(old: int, new: int) -> Tensor:
    """Return the weights of the old offsets in each new one: (2 new - 1, 2 old - 1)."""
    low, high = 1.01, 1.5  # the ratio with which the old offsets just reach the farthest new one
    ratio = low
    while high - low > 1e-6:
        ratio = (low + high) / 2
        reach = (1 - ratio ** (old - 1)) / (1 - ratio)
        low, high = (low, ratio) if reach > new - 1 else (ratio, high)
    steps = torch.tensor([ratio**k for k in range(old - 1)], dtype=torch.float64).cumsum(0)
    places = torch.cat([-steps.flip(0), torch.zeros(1, dtype=torch.float64), steps])
    want = torch.arange(1 - new, new, dtype=torch.float64).clamp(places[0], places[-1])
    above = torch.searchsorted(places.contiguous(), want.contiguous()).clamp(
        1, max(1, len(places) - 1)
    )
    weights = torch.zeros(len(want), len(places), dtype=torch.float64)
    if old == 1:
        return weights + 1
    share = (want - places[above - 1]) / (places[above] - places[above - 1])
    line = torch.arange(len(want))
    weights[line, above - 1], weights[line, above] = 1 - share, share
    return weights


class Relative(OwnOrShared):
    """A bias on the logits from a query and the 1-D offset to a key (ViT paper, D.4, relative).

    The original query attends to an embedding of the offset p_q - p_k between places in raster
    order (the class token is place 0, then the registers), scaled like the main attention. The
    paper leaves open whether heads share the embeddings; here they do, as in Shaw et al. (2018).
    """

    name = "relative"
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
