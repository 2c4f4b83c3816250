"""The position scheme: where a token sits, added to it or acting within attention.

Tokens are (B, N, D): the class token first where there is one, then the registers, which have no
position, then the patches in raster order, then any further tokens, which have none either.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.grid import Grid
from vitlab.models.registry import Component, kind_named

MOST = 256  # grids that are kept, the oldest of which goes first


class Positions(Component, nn.Module):
    """Positions of one table, for all blocks or for one; by default they do nothing.

    A subclass with a `name` is that value of `ViTConfig.positions`. It overrides where it acts:
    `start` once before the encoder, `place` before a block, `relate` within a block's attention.

    Attributes:
        grid: rows and columns of the patches that they are for
        takes_extra: whether further tokens can join those of the image
        packed: images of different sizes that they are for (encoder/mixed_sizes.py); 0: one size
    """

    field = "positions"
    takes_extra: ClassVar[bool] = True
    packed: int = 0

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, self.grid = config, config.grid
        # what `at` made for other grids, with the weights that it was made from and their state
        self.elsewhere: dict[Grid, tuple[Positions, list[nn.Parameter], object]] = {}

    def at(self, grid: Grid) -> "Positions":
        """Return these positions for another grid of patches, as `resized` makes them.

        They are kept for the next images on that grid until a weight changes: PyTorch counts how
        often a tensor was changed in place, but for writing to its `.data`, so `train` and moving
        the model forget them. They are made each time where gradients should reach the weights, and
        where nothing can be kept (tensors without a version or memory, a program being traced).

        Raises:
            OptionError: the scheme is limited to one image size.
        """
        grid = int(grid[0]), int(grid[1])  # tensors while a graph is traced
        if grid == self.grid:
            return self
        weights = [*self.parameters()]
        learning = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if learning or torch.compiler.is_compiling():
            return self._made(grid)
        try:
            state = [(id(weight), weight.data_ptr(), weight._version) for weight in weights]
        except RuntimeError:  # made in inference mode, or of many models in `torch.func.vmap`
            return self._made(grid)
        made, _, before = self.elsewhere.get(grid, (self, weights, None))
        if before != state:
            with torch.inference_mode(False), torch.no_grad():  # also of use in training
                made = self._made(grid)
            if len(self.elsewhere) >= MOST:
                del self.elsewhere[next(iter(self.elsewhere))]
            self.elsewhere[grid] = made, weights, state
        return made

    def _made(self, grid: Grid) -> "Positions":
        """Return the same scheme on another grid, around these tensors resized."""
        config = on_grid(self.config, grid)
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        with torch.device("meta"):
            made = self.again(config)
        own = dict(self.named_buffers())
        buffers = {name: own[name].new_empty(each.shape) for name, each in made.named_buffers()}
        for name, tensor in (self.resized(tensors, self.config, config) | buffers).items():
            module, _, leaf = name.rpartition(".")
            owner = made.get_submodule(module)
            owner._parameters.pop(leaf, None)  # none takes its place: gradients pass through it
            setattr(owner, leaf, tensor)
        made.refresh()
        return made.train(self.training)

    def again(self, config: ViTConfig) -> Self:
        """Return the same scheme for another image size, for the same blocks."""
        return type(self)(config)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation, and forget what was kept for other grids."""
        self.elsewhere.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Change type or device of every tensor, which its version does not show."""
        self.elsewhere.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: 1, which all blocks share, or one per layer."""
        return 1

    @classmethod
    def of_layers(cls, config: ViTConfig) -> Sequence[Self]:
        """Return the modules: one that all blocks share, or one per layer."""
        return [cls(config) for _ in range(cls.tables(config))]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw its own weights from normals of standard deviation 0.02; compute every buffer."""
        for weight in self.parameters(recurse=False):
            nn.init.normal_(weight, std=0.02, generator=generator)
        self.refresh()

    def refresh(self) -> None:
        """Fill in place the buffers that are computed, not stored."""

    def start(self, tokens: Tensor) -> Tensor:
        """Return the tokens as the encoder's input: (B, N, D) -> (B, N, D)."""
        return tokens

    def place(self, tokens: Tensor) -> Tensor:
        """Return the tokens as a block's input: (B, N, D) -> (B, N, D)."""
        return tokens

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys, (B, h, N, d), and a bias on their logits, (B, h, N, N)."""
        return q, k, None

    @property
    def relates(self) -> bool:
        """Whether the scheme acts within attention at all."""
        return type(self).relate is not Positions.relate

    def attended(self, attention: Any, qkv: Tensor) -> Tensor:
        """Return what tokens of packed images gather from their own image."""
        raise NotImplementedError

    def drawn(self, rate: float, tokens: Tensor) -> Tensor:
        """Draw which packed images skip a branch, as a factor for each token."""
        raise NotImplementedError

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Return a table's tensors for another image size.

        Args:
            tensors: by their names in this module
            old: the configuration that they fit
            new: the same but for its image size

        Raises:
            OptionError: the scheme is limited to one image size.
        """
        return tensors


class NoPositions(Positions):
    """Nothing: without positions, the order of the patches does not matter."""

    name = "none"


class Added(Positions):
    """Learned positions, added to the tokens before the encoder or before every block."""

    uses: ClassVar[tuple[str, ...]] = ("positions_at", "positions_size")

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: one, or with positions_at=every one per layer."""
        return config.depth if config.positions_at == "every" else 1

    def table_of(self) -> Tensor:
        """Return what is added: (1, class token + patches, D)."""
        raise NotImplementedError

    def start(self, tokens: Tensor) -> Tensor:
        """Add the positions before the encoder, with positions_at=stem."""
        return self.added(tokens) if self.config.positions_at == "stem" else tokens

    def place(self, tokens: Tensor) -> Tensor:
        """Add the positions before a block, unless with positions_at=stem."""
        return tokens if self.config.positions_at == "stem" else self.added(tokens)

    def added(self, tokens: Tensor) -> Tensor:
        """Add its position to each token that has one: (B, N, D) -> (B, N, D)."""
        table, registers = self.table_of(), self.config.registers
        last = registers + table.shape[1]
        if registers == 0 and tokens.shape[1] == last:
            return tokens + table
        head = int(self.config.has_token)
        spread = F.pad(table[:, head:], (0, 0, registers, tokens.shape[1] - last))
        return tokens + torch.cat([table[:, :head], spread], dim=1)


class Inner(Positions):
    """Positions that act within attention, over the sequence of all patches."""

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse axial attention, whose rows and columns are other sequences."""
        if config.attention == "axial":
            raise OptionError(
                f"positions={config.positions} cannot act within attention=axial: use "
                "positions=none, 1d or 2d"
            )


class OwnOrShared(Inner):
    """Learned positions within attention: a table per block, or one with positions_at=shared."""

    takes_extra = False

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: one per layer, or with positions_at=shared one."""
        return 1 if config.positions_at == "shared" else config.depth

    def bias(self, q: Tensor) -> Tensor:
        """Return what is added to the scaled logits: queries (B, h, N, d) -> (B, h, N, N)."""
        raise NotImplementedError

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys, (B, h, N, d), and the bias on their logits, (B, h, N, N)."""
        return q, k, self.bias(q)


def check_extra(extra: Tensor, config: ViTConfig, positions: Positions) -> Tensor:
    """Return a further sequence of tokens that joins those of an image, (B, M, width).

    Raises:
        OptionError: another shape, or a model that knows the tokens of the image only.
    """
    without = ["attention"] if config.attention == "axial" else []
    without += [] if positions.takes_extra else ["positions"]
    if without:
        what = f"{without[0]}={getattr(config, without[0])}"
        raise OptionError(f"{what} cannot place extra tokens: it knows those of the image only")
    if extra.ndim != 3 or extra.shape[-1] != config.width:
        raise OptionError(f"extra must be (B, M, {config.width}), not {tuple(extra.shape)}")
    return extra


@lru_cache(maxsize=1024)
def on_grid(config: ViTConfig, grid: Grid) -> ViTConfig:
    """Return the same configuration for images of so many rows and columns of patches."""
    return replace(config, image_size=config.size_of(grid))


def scheme_of(config: ViTConfig) -> type[Positions]:
    """Return the class of the positions that a configuration names."""
    kind = kind_named("positions", config.positions)
    assert issubclass(kind, Positions)
    return kind
