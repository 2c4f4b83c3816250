"""Every format there is. To add one, write its room beside this file and give it a line here.

No PyTorch here: a room is imported when it first reads or writes.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlab.errors import OptionError
from vitlab.options import nearest

if TYPE_CHECKING:
    from vitlab.weights.formats.room import Reads, Writes


@dataclass(frozen=True)
class Format:
    """One format of weights, in and out.

    Attributes:
        name: one word, as `vitlab.save(to=...)` takes it
        help: one phrase for `--help` and for messages
        room: the module beside this one that has its `reads` and `writes`
        exported: it can be written for a model alone
    """

    name: str
    help: str
    room: str
    exported: bool = True

    @property
    def reads(self) -> "Reads":
        """Recognize a source: None for another format, an error for a damaged one."""
        return self._module.reads

    @property
    def writes(self) -> "Writes":
        """Represent a model: an error if the format cannot."""
        return self._module.writes

    @property
    def _module(self) -> Any:
        return import_module(f"{__package__}.{self.room}")


# In this order: the first that recognizes a source reads it.
FORMATS = (
    Format("delta", "a delta (Delta.save)", "delta_file", exported=False),
    Format("vitlab", "a folder of ViTLab", "own"),
    Format(
        "sam",
        "the image encoder of Segment Anything (Meta, EfficientSAM, timm, transformers)",
        "encoders.sam_encoder",
        exported=False,
    ),
    Format("radio", "RADIO and C-RADIO (NVIDIA, transformers)", "encoders.radio", exported=False),
    Format("vjepa2", "V-JEPA 2's encoder, for images", "encoders.vjepa2", exported=False),
    Format(
        "transformers",
        "a folder of Hugging Face transformers (ViT, DeiT, BEiT, DINO, CLIP, SigLIP, …)",
        "transformers.transformers_format",
    ),
    Format(
        "dalle",
        "DALL-E's tokenizer (OpenAI's encoder.pkl, decoder.pkl or a folder with both)",
        "tokenizers.dalle_file",
        exported=False,
    ),
    Format("cait", "CaiT, its own .pth or timm's", "encoders.cait_file", exported=False),
    Format("unsupported", "", "encoders.unsupported", exported=False),  # says what it is
    Format(
        "timm",
        "a folder of timm, or a file of other code (DeiT, DINO, BEiT, torchvision, open_clip, …)",
        "timm.timm_format",
    ),
    Format("google", "Google's .npz (ViT, AugReg, hybrids, BiT)", "google.npz"),
)
PEFT = "peft"  # an adapter, whose tensors have the names of its base's format


def export_names() -> list[str]:
    """List the formats that `vitlab.save(to=...)` writes."""
    return [*(each.name for each in FORMATS if each.exported), PEFT]


def export_help() -> str:
    """Return what each of them is, for `--help`."""
    formats = "; ".join(f"{each.name}, {each.help}" for each in FORMATS if each.exported)
    return f"{formats}; {PEFT}, what LoRA changed and the classifier, for peft"


def supported() -> str:
    """Return what can be loaded, in one phrase."""
    return "; ".join(each.help for each in FORMATS if each.help)


def format_named(name: str) -> Format:
    """Return a format that can be written.

    Raises:
        OptionError: no such format; the message names those there are.
    """
    for each in FORMATS:
        if each.name == name and each.exported:
            return each
    raise OptionError(f"unknown format {name!r}: {nearest(name, export_names())}")
