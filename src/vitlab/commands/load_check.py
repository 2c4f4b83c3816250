"""`vitlab load-check`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.commands import WEIGHTS
from vitlab.options import Options, option
from vitlab.terminal import print_table
from vitlab.weights.stated import Stated

SUMMARY = "Identify a weights file: format, model, and every tensor."


@dataclass(frozen=True, kw_only=True)
class LoadCheck(Options):
    """Weights, and what they may not say of themselves."""

    source: str = option(MISSING, WEIGHTS, positional=True)
    file: Stated = Stated()


def run(options: LoadCheck) -> dict[str, Any]:
    """Check the file; what had to be assumed is reported on stderr."""
    from vitlab.progress import say
    from vitlab.weights.check import load_check

    found = load_check(options.source, **options.file.arguments())
    for note in found.notes:
        say(f"note: {note}")
    return found.as_dict()


def show(result: dict[str, Any]) -> None:
    """Print format and model, the tensors, and what is left out."""
    print(f"{result['model']}: {result['format']}")
    fields = [
        (key, str(value), result["origins"][key])
        for key, value in result["config"].items()
        if key != "labels"
    ]
    print_table(("field", "value", "from"), fields)
    rows = [
        (
            ", ".join(each["ours"]),
            ", ".join(each["theirs"]) or "computed",
            " ".join(map(str, each["shapes"])),
        )
        for each in result["tensors"]
    ]
    print_table(("tensor", "from", "shape there"), rows)
    print_table(("left out", "because it is"), list(result["left_out"].items()))
