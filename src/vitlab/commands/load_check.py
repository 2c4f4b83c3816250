"""`vitlab load-check`."""

from dataclasses import dataclass
from typing import Any

from vitlab.commands import WEIGHTS
from vitlab.errors import OptionError
from vitlab.options import Options, option
from vitlab.terminal import print_table
from vitlab.weights.stated import Stated

SUMMARY = "Identify a weights file: format, model, and every tensor."


@dataclass(frozen=True, kw_only=True)
class LoadCheck(Options):
    """Weights, and what they may not say of themselves."""

    source: str = option("", WEIGHTS, positional=True)
    verify: str = option(
        "",
        "instead of weights, a published model's name on the Hub: download it, and compare it "
        "with the library it is from; all: every one that docs/weights.md lists",
    )
    file: Stated = Stated()


def run(options: LoadCheck) -> dict[str, Any]:
    """Check the file; what had to be assumed is reported on stderr.

    Raises:
        OptionError: nothing to check, or two things.
    """
    from vitlab.progress import say

    if bool(options.source) == bool(options.verify):
        raise OptionError("give either weights, or --verify with the name of a published model")
    if options.verify:
        from vitlab.weights.verification.verify import verify

        return {"verified": [each.as_dict() for each in verify(options.verify, say)]}
    from vitlab.weights.check import load_check

    found = load_check(options.source, **options.file.arguments())
    for note in found.notes:
        say(f"note: {note}")
    return found.as_dict()


def show(result: dict[str, Any]) -> None:
    """Print format and model, the tensors, and what is left out; or what was verified."""
    if "verified" in result:
        _show_verified(result["verified"])
        return
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


def _show_verified(results: list[dict[str, Any]]) -> None:
    """Print a row per published model, and how many have no recorded outputs."""
    rows = []
    for each in results:
        if each["problem"]:
            rows.append((each["name"], "", "not compared", each["problem"], "", ""))
            continue
        difference = f"{each['difference']:.1e} of {each['compared']}"
        digest = " ".join(f"{number:g}" for number in each["outputs"])
        verdict = "agrees" if each["agrees"] else "DIFFERS"
        seconds = f"{each['seconds']:.1f}"
        rows.append((each["name"], each["format"], verdict, difference, digest, seconds))
    head = ("model", "format", "verdict", "largest difference", "some of our outputs", "seconds")
    print_table(head, rows)
    new = sum(each["recorded"] is None and not each["problem"] for each in results)
    if new:
        print(f"outputs of {new} were never recorded, so they were compared with the library alone")
    for each in results:
        if each["recorded"] is False:
            print(f"{each['name']}: not the outputs that were recorded")
