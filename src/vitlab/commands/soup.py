"""`vitlab soup`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WEIGHTS, DeviceOptions, Split, WorkersOptions
from vitlab.data.exists import check_data
from vitlab.files import head_of
from vitlab.options import argument, option
from vitlab.places import check_new_folder
from vitlab.terminal import print_rows
from vitlab.units import percent
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated


@dataclass(frozen=True, kw_only=True)
class Soup(WorkersOptions, DeviceOptions):
    """The models, how to choose among them, and the folder of the new one."""

    weights: tuple[str, ...] = argument(
        f"two or more models of one configuration: {WEIGHTS}", check_weights
    )
    out: str = option(MISSING, "the new folder", check=check_new_folder)
    greedy: str = option(
        "",
        "labeled images to choose on: the best model first, then each that does not lower the "
        "accuracy (empty: average all)",
        check=check_data,
    )
    split: Split = option(
        "auto",
        "which of those images; auto: the validation split if there is one, else as in "
        "`vitlab evaluate`",
    )
    file: Stated = Stated()


def run(options: Soup) -> dict[str, Any]:
    """Average and save."""
    from vitlab.transfer.soup import soup
    from vitlab.weights.identity import fingerprint
    from vitlab.weights.load import load
    from vitlab.weights.save import save

    known = options.file.arguments()
    models = [
        load(each, **known) if known and not head_of(each) else each for each in options.weights
    ]
    model = soup(models, options.greedy or None, **options.values("split device workers"))
    folder = save(model, options.out)
    about = {"model": model.config.name, "folder": str(folder), "fingerprint": fingerprint(model)}
    return about | model.provenance["soup"]


def show(result: dict[str, Any]) -> None:
    """Print the ingredients, then the folder."""
    rows = [each | {"fingerprint": each["fingerprint"][:12]} for each in result["ingredients"]]
    for row in rows:
        if "with_it" in row:
            row["with_it"] = percent(row["with_it"])
    print_rows(rows)
    print(f"{result['folder']}: {result['model']}, {result['kind']} soup")


COMMAND = Command(run, show=show)
