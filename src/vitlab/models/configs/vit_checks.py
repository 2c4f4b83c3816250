"""Checks of a ViT's configuration: choices that exclude each other, and what would work."""

import math
from typing import Any

from vitlab.errors import OptionError

# A `ViTConfig`, which imports this file, so its name cannot stand here.


# Numbers that no model has; a hostile file may state them, and they would be built.
MOST = {
    "depth": 2000, "branches": 2000, "width": 2**17, "registers": 2**16,
    "queries": 2**16, "stem_frames": 2**10, "rope_grid": 2**16,
}  # fmt: skip
MOST_BLOCKS, MOST_PARAMETERS = 2000, 10**11  # the largest published model has 22 billion


def check_together(config: Any) -> None:
    """Refuse choices of a `ViTConfig` that do not go together.

    Raises:
        OptionError: the message says what would work.
    """
    for check in (check_extent, check_heads, check_pool):
        check(config)


def check_extent(config: Any) -> None:
    """Refuse a model of more blocks or parameters than could be built."""
    for name, most in MOST.items():
        if (value := getattr(config, name)) > most:
            raise OptionError(f"{name} must be at most {most:,}, not {value:,}")
    blocks = config.depth * config.branches
    if blocks > MOST_BLOCKS:
        raise OptionError(
            f"depth={config.depth} and branches={config.branches} make {blocks:,} blocks; at most "
            f"{MOST_BLOCKS:,} are supported"
        )
    check_stages(config.stages)
    rows = 4 * config.width + 2 * config.mlp  # of every block's layers
    pixels = config.patch**2 * config.channels
    outputs = config.classes + (config.pre_logits or 0) + 2 * config.pool_mlp
    tokens = math.prod(config.grid) + config.registers + config.queries
    check_parameters(config.width * (blocks * rows + pixels + outputs + tokens))


def check_stages(stages: tuple[int, ...]) -> None:
    """Refuse a ResNet of more units than could be built."""
    if len(stages) > 8 or sum(stages) > MOST_BLOCKS:
        raise OptionError(f"stages has {len(stages)} stages of {sum(stages):,} units: too many")


def check_parameters(count: int) -> None:
    """Refuse a model that no machine could hold."""
    if count > MOST_PARAMETERS:
        raise OptionError(
            f"the model would have more than {count:.0e} parameters; at most "
            f"{MOST_PARAMETERS:.0e} are supported"
        )


def check_heads(config: Any) -> None:
    """Refuse heads that do not divide the width."""
    for name, heads in (("heads", config.heads), ("pool_heads", config.pool_heads or config.heads)):
        if config.width % heads:
            near = [n for n in range(1, config.width + 1) if config.width % n == 0]
            near = sorted(sorted(near, key=lambda n: abs(n - heads))[:2])
            raise OptionError(
                f"{name}={heads} does not divide width={config.width}: "
                f"{' or '.join(map(str, near))} would"
            )


def check_pool(config: Any) -> None:
    """Refuse a pool without the tokens that it needs."""
    if config.pool in ("token", "both") and not config.has_token:
        raise OptionError(f"pool={config.pool} needs a class token: set class_token=True")
    if config.pool.startswith("prefix") and not config.prefix:
        raise OptionError(
            f"pool={config.pool} needs a class token or registers: set class_token=True or "
            "registers=4"
        )
    if any(number >= config.prefix for number in config.pool_tokens):
        raise OptionError(
            f"pool_tokens={config.pool_tokens} has a number above {config.prefix - 1}, that of the "
            "last token before the patches: they are counted from 0"
        )
    alone = config.pool in ("token", "mean", "prefix-mean")
    if config.norm_at in ("pooled", "both") and not alone:
        raise OptionError(f"norm_at={config.norm_at} needs pool=token or mean, not {config.pool}")
    if config.attention == "axial" and config.prefix:
        what = f"registers={config.registers}" if config.registers else "a class token"
        if config.pool == "token" and not config.registers:
            what = "pool=token"
        raise OptionError(
            f"attention=axial has no row or column for the extra tokens of {what}: "
            "set pool=mean and registers=0"
        )
