"""The options that say which model is in a file of weights, and which tensors to leave out."""

from dataclasses import dataclass

from vitlab.options import Options, option
from vitlab.weights.sharded import Fields


@dataclass(frozen=True, kw_only=True)
class Named(Options):
    """Model and tensors of weights whose file does not state them."""

    name: str = option(
        "", "the model in the file, if it does not say: ViT-B/16, or timm's vit_base_patch16_224"
    )
    part: str = option("", "which model of a file that holds several, such as teacher or student")
    drop: tuple[str, ...] = option(
        (), "tensors to leave out, by name or pattern, such as 'head_aux.*'"
    )
    base: str = option("", "base of a LoRA adapter or a delta, if it is not at its recorded place")

    def arguments(self) -> Fields:
        """Return the arguments of `vitlab.load` that were given."""
        return {name: value for name, value in vars(self).items() if value not in (None, "", ())}
