"""`vitlab load-check`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WEIGHTS
from vitlab.models.config import ResNetConfig, TokenizerConfig, ViTConfig
from vitlab.options import Options, argument, defaults, hints
from vitlab.terminal import print_table
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

# Fields that are shown whatever their value, and origins that make a default not worth a line.
ALWAYS = ("image_size", "classes", "width", "depth", "heads", "mlp", "patch", "pool", "gelu",
          "norm_eps", "mean", "std", "crop", "interpolation")  # fmt: skip
PLAIN = ("tensors", "family")


@dataclass(frozen=True, kw_only=True)
class LoadCheckOptions(Options):
    """Weights, and what they may not say of themselves."""

    source: str = argument(WEIGHTS, check_weights)
    file: Stated = Stated()


def run(options: LoadCheckOptions) -> dict[str, Any]:
    """Check the file; what had to be assumed is reported on stderr."""
    from vitlab.progress import say
    from vitlab.weights.load import load_check

    found = load_check(options.source, **options.file.arguments())
    for note in found.notes:
        say(f"note: {note}")
    return found.as_dict()


def show(result: dict[str, Any]) -> None:
    """Print format and model, the tensors, and what is left out."""
    print(f"{result['model']}: {result['format']}")
    told = [(key, _text(value), result["origins"][key]) for key, value in _telling(result)]
    print_table(("field", "value", "from"), told)
    rest = len(result["config"]) - len(told)
    print(f"{rest} further fields have their defaults (--json lists them)")
    for each in result["tensors"]:  # in lines, since a table would cut their names short
        theirs = ", ".join(each["theirs"]) or "nothing: computed"
        print(", ".join(each["ours"]), "from", theirs, *each["shapes"])
    for name, why in result["left_out"].items():
        print(f"{name} is left out: {why}")


def _telling(result: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields that say what the model is: not those that are off, as in most models."""
    kinds = (ViTConfig, ResNetConfig, TokenizerConfig)
    kind = next(kind for kind in kinds if {*result["config"]} <= {*hints(kind)})
    usual = defaults(kind)
    return [
        (name, value)
        for name, value in result["config"].items()
        if name != "labels"
        if (tuple(value) if isinstance(value, list) else value) != usual[name]
        or name in ALWAYS
        or result["origins"][name] not in PLAIN
    ]


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


COMMAND = Command(run, show=show)
