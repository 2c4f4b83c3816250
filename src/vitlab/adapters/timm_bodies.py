"""A Vision Transformer and a ResNet behind timm's surface."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vitlab.adapters.timm_surface import POOLS, TimmModel
from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.models.config import ModelConfig, map_features, map_stride
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer


class TimmVisionTransformer(TimmModel):
    """As timm's `VisionTransformer`."""

    model: VisionTransformer

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__(model, POOLS.get(model.config.pool, model.config.pool))

    @property
    def num_features(self) -> int:
        """Channels of a token."""
        return self.model.config.width

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before those of the patches: class and distillation token, registers."""
        return self.model.config.prefix

    @property
    def num_reg_tokens(self) -> int:
        """Registers among them."""
        return self.model.config.registers

    @property
    def has_class_token(self) -> bool:
        """Whether the first of them is a class token."""
        return self.model.config.has_token

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The encoder's blocks."""
        return self.model.blocks

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Module, channels and stride of each block."""
        config = self.model.config
        each = {"num_chs": config.width, "reduction": config.patch}
        return [{"module": f"model.blocks.{n}", **each} for n in range(len(self.blocks))]

    def forward_features(self, x: Tensor) -> Tensor:
        """Compute tokens after the final norm: (B, channels, H, W) -> (B, N, D)."""
        with self.recomputing():
            return self.model.encode(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool tokens (B, N, D) as `global_pool` says, and classify them.

        Args:
            x: tokens
            pre_logits: return what the classifier sees instead
        """
        head = self.model.head
        seen = head.features(x) if self.global_pool else head.norm(x)
        return seen if pre_logits else head(seen)

    def run(
        self, x: Tensor, numbers: list[int], norm: bool, whole: bool
    ) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Compute maps and prefix tokens that leave blocks, and all tokens after the last."""
        model, config = self.model, self.model.config
        grid = config.grid_of(x.shape[-2:])
        layers = [number + 1 for number in numbers]
        with self.recomputing():
            left = model.intermediates(x, [*layers, -1] if whole else layers, norm=norm)
            found = [DenseFeatures.of(each, config.prefix, grid) for each in left[: len(layers)]]
            final = left[-1] if whole else None
            if final is not None and not norm:
                final = model.finish(final[:, config.prefix - config.leading :])
        return [each.map for each in found], [each.prefix for each in found], final

    def configured(self, pool: str | None, **fields: Any) -> ModelConfig:
        """Return the configuration with other fields, and pooled by timm's word.

        Raises:
            OptionError: a word for none of ours, or attention pooling, which has weights of its
                own, for a model without it.
        """
        config = self.model.config
        if pool not in (None, "", POOLS.get(config.pool, config.pool)):
            words = {"token": "token", "avg": "mean"}
            if pool not in words:
                raise OptionError(
                    f"global_pool must be token, avg, or '' for no pooling, not {pool!r}"
                )
            fields |= {"pool": words[pool], "class_token": config.has_token}
        return replace(config, pre_logits=0, **fields)

    def _resized(self, size: Size, patch: Size | None) -> Model:
        own = self.model.config.patch
        if patch in (None, own, (own, own)):
            return self.model.resize(size)
        rows, columns = (patch, patch) if isinstance(patch, int) else patch
        if rows != columns:
            raise OptionError(f"patches must be square, not {rows}x{columns}")
        return self.model.repatch(rows, size)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of names by depth: stem, blocks, and what follows them."""
        return {
            "stem": r"^model\.(?:stem|token|registers|positions|pre_norm)",
            "blocks": [(r"^model\.blocks\.(\d+)", None), (r"^model\.norm", (99999,))],
        }


class TimmResNet(TimmModel):
    """As timm's `ResNetV2`; `forward_features` gives a map, (B, D, h, w)."""

    model: ResNet

    def __init__(self, model: ResNet) -> None:
        super().__init__(model, "avg")

    @property
    def num_features(self) -> int:
        """Channels of the last map."""
        return self.model.config.features

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The stages."""
        return list(self.model.body.stages.children())

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Module, channels and stride of each stage."""
        config = self.model.config
        parts = [config.stages[: number + 1] for number in range(len(config.stages))]
        return [
            {
                "module": f"model.body.stages.{number}",
                "num_chs": map_features(part, config.widen),
                "reduction": map_stride(part),
            }
            for number, part in enumerate(parts)
        ]

    def forward_features(self, x: Tensor) -> Tensor:
        """Compute the last map after its norm: (B, channels, H, W) -> (B, D, h, w)."""
        self.model.check_images(x)
        return self.model.body(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Average a map (B, D, h, w) over its places, unless `global_pool` is empty; classify it.

        Args:
            x: the map
            pre_logits: return what the classifier sees instead
        """
        if not self.global_pool:
            return x
        seen = x.mean((2, 3))
        return seen if pre_logits else self.model.classify(seen)

    def run(
        self, x: Tensor, numbers: list[int], norm: bool, whole: bool
    ) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Compute maps that leave stages, and the last one; only the last has a norm."""
        layers = [number + 1 for number in numbers]
        left = self.model.intermediates(x, [*layers, -1] if whole else layers, norm=norm)
        final = left[-1] if whole else None
        if final is not None and not norm:
            final = self.model.body.finish(final)
        return left[: len(layers)], [], final

    def configured(self, pool: str | None, **fields: Any) -> ModelConfig:
        """Return the configuration with other fields.

        Raises:
            OptionError: another pool than the mean over places, `avg`.
        """
        if pool not in (None, "", "avg"):
            raise OptionError(f"{self.model.config.name} averages its map: global_pool='avg'")
        return replace(self.model.config, **fields)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of names by depth: root, units (or stages), and the last norm."""
        unit = r"^model\.body\.stages\.(\d+)" + ("" if coarse else r"\.(\d+)")
        return {
            "stem": r"^model\.body\.root",
            "blocks": [(unit, None), (r"^model\.body\.norm", (99999,))],
        }
