"""Every architectural choice of a ResNet of the ViT paper, as one frozen value."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import (
    ModelConfig,
    check_parameters,
    check_stages,
    map_features,
    map_stride,
)
from vitlab.models.grid import check_multiple
from vitlab.models.names import resnet_name
from vitlab.options import at_least, option, when


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """A ResNet of the ViT paper: BiT-R50x1 and its like, or the Axial ResNet (appendix D.6).

    Raises:
        OptionError: a value or combination that is not possible; the message says what would work.
    """

    kind: ClassVar[str] = "resnet"

    stages: tuple[int, ...] = option(
        (3, 4, 6, 3), "bottleneck units per stage of a ResNet", at_least(1)
    )
    widen: int = option(
        1, "factor on every width of a BiT ResNet", at_least(1), only=when("attention", "none")
    )
    attention: Literal["none", "axial"] = option(
        "none",
        "none: BiT (GroupNorm, standardized convolutions, pre-activation); axial: attention along "
        "rows and columns",
    )

    def __post_init__(self) -> None:
        """Check every field by itself, then together."""
        super().__post_init__()
        if self.fit == "native":
            raise OptionError(
                "fit=native needs patches, which a ResNet does not have: use crop or squash"
            )
        if not self.stages:
            raise OptionError("stages must have at least one stage, such as (3, 4, 6, 3)")
        check_stages(self.stages)
        units = sum(n * 4**stage for stage, n in enumerate(self.stages))
        check_parameters(70_000 * units * self.widen**2 + self.classes * self.features)
        if self.attention == "axial":
            stages = f"which an Axial ResNet of {len(self.stages)} stages needs"
            stride = map_stride(self.stages)
            check_multiple(self.size, stride, f"{stride}, {stages}")

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse another size than an Axial ResNet's own, which its relative positions fit."""
        if self.attention == "axial":
            raise OptionError(
                f"images of {size[0]}x{size[1]} pixels do not fit {self.name}, whose relative "
                f"positions hold for one size only: use image_size={self.image_size}"
            )

    @property
    def name(self) -> str:
        """The papers' notation for this shape, `BiT-R50x1`; `config_of` reads it."""
        return resnet_name(self.stages, self.widen, axial=self.attention == "axial")

    @property
    def features(self) -> int:
        """Width of the classifier's input."""
        return map_features(self.stages, self.widen)

    def layer_width(self, layer: int) -> int:
        """Return the channels of what leaves a stage."""
        there = 1 <= layer <= len(self.stages)
        return map_features(self.stages[:layer], self.widen) if there else 0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last map."""
        rows, columns = self.size
        stride = map_stride(self.stages)
        return -(-rows // stride), -(-columns // stride)
