"""Every format there is. To add one, write its room beside this file and give it a line here.

No PyTorch here: a room is imported when it first reads or writes.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitlab.errors import OptionError
from vitlab.options import nearest

if TYPE_CHECKING:
    from vitlab.weights.formats.format_api import Reads, Writes


@dataclass(frozen=True)
class Format:
    """One format of weights, in and out.

    Attributes:
        name: one word, as `vitlab.save(to=...)` takes it
        room: the module beside this one (or above it: `.deltas`) that has its `reads` and `writes`
        help: one phrase for `--help` if it can be written for a model alone
        kind: of container, for which this format is asked first
    """

    name: str
    room: str
    help: str = ""
    kind: str = ""

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
        return import_module(f".{self.room}", __package__)


# In this order: the first that recognizes a source reads it.
FORMATS = (
    Format("delta", ".deltas"),
    Format("vitlab", "own", "a folder of ViTLab"),
    Format(
        "transformers",
        "transformers.transformers_format",
        "a folder of Hugging Face transformers (ViT, DeiT, BEiT, DINO, CLIP, SigLIP, …)",
    ),
    Format("dalle", "dalle"),
    Format("unsupported", "unsupported"),  # says what it is
    Format("timm", "timm.timm_format", "a folder of timm"),
    Format("google", "google", "Google's .npz (ViT, AugReg, hybrids, BiT)", kind="npz"),
)
PEFT = "peft"  # an adapter, whose tensors have the names of its base's format


def export_names() -> list[str]:
    """List the formats that `vitlab.save(to=...)` writes."""
    return [*(each.name for each in FORMATS if each.help), PEFT]


def export_help() -> str:
    """Return what each of them is, for `--help`."""
    formats = "; ".join(f"{each.name}, {each.help}" for each in FORMATS if each.help)
    return f"{formats}; {PEFT}, what LoRA changed and the classifier, for peft"


def format_named(name: str) -> Format:
    """Return a format that can be written.

    Raises:
        OptionError: no such format; the message names those there are.
    """
    for each in FORMATS:
        if each.name == name and each.help:
            return each
    raise OptionError(f"unknown format {name!r}: {nearest(name, export_names())}")
