"""Every format there is. To add one, write its file beside this one and its entry of `FORMATS`.

No PyTorch here: a format's file is imported when it first reads or writes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.by_name import load_object
from vitlab.errors import OptionError
from vitlab.options import nearest

if TYPE_CHECKING:
    from vitlab.weights.formats.format_api import Reads, Writes


@dataclass(frozen=True)
class Format:
    """One format of weights, in and out.

    Attributes:
        reader: its function, as "module:object", that recognizes a source
        writer: its function, as "module:object", that represents a model; empty for none
        help: one phrase for `--help` if it can be written for a model alone
        kind: of container, for which this format is asked first
    """

    reader: str
    writer: str = ""
    help: str = ""
    kind: str = ""

    @property
    def reads(self) -> "Reads":
        """Recognize a source: None for another format, an error for a damaged one."""
        function: Reads = load_object(self.reader)
        return function

    @property
    def writes(self) -> "Writes":
        """Represent a model: an error if the format cannot."""
        function: Writes = load_object(self.writer)
        return function


# By the word that `vitlab.save(to=...)` takes, in this order: the first that recognizes a source
# reads it.
FORMATS: dict[str, Format] = {
    "delta": Format("vitlab.weights.deltas:reads"),
    "vitlab": Format(
        "vitlab.weights.formats.own:reads",
        "vitlab.weights.formats.own:writes",
        "a folder of ViTLab",
    ),
    "transformers": Format(
        "vitlab.weights.formats.transformers.transformers_format:reads",
        "vitlab.weights.formats.transformers.transformers_format:writes",
        "a folder of Hugging Face transformers (ViT, DeiT, BEiT, DINO, CLIP, SigLIP, …)",
    ),
    "dalle": Format("vitlab.weights.formats.dalle:reads"),
    "unsupported": Format("vitlab.weights.formats.unsupported:reads"),  # says what it is
    "timm": Format(
        "vitlab.weights.formats.timm.timm_format:reads",
        "vitlab.weights.formats.timm.timm_format:writes",
        "a folder of timm",
    ),
    "google": Format(
        "vitlab.weights.formats.google:reads",
        "vitlab.weights.formats.google:writes",
        "Google's .npz (ViT, AugReg, hybrids, BiT)",
        kind="npz",
    ),
}
PEFT = "peft"  # an adapter, whose tensors have the names of its base's format


def export_names() -> list[str]:
    """List the formats that `vitlab.save(to=...)` writes."""
    return [*(name for name, format in FORMATS.items() if format.help), PEFT]


def export_help() -> str:
    """Return what each of them is, for `--help`."""
    shown = {name: format.help for name, format in FORMATS.items() if format.help}
    formats = "; ".join(f"{name}, {help}" for name, help in shown.items())
    return f"{formats}; {PEFT}, what LoRA changed and the classifier, for peft"


def format_named(name: str) -> Format:
    """Return a format that can be written.

    Raises:
        OptionError: no such format; the message names those there are.
    """
    if name in FORMATS and FORMATS[name].help:
        return FORMATS[name]
    raise OptionError(f"unknown format {name!r}: {nearest(name, export_names())}")
