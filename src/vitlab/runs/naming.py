"""Default folders of runs: `runs/DATA-MODEL`, then `runs/DATA-MODEL-2`, …"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.files import LOCK, is_empty
from vitlab.recipes.recipe import Recipe

if TYPE_CHECKING:  # PyTorch takes seconds to import
    from vitlab.models.model import Model

ROOT = Path("runs")
LONGEST = 60  # characters of a word


def run_name(recipe: Recipe, start: "Model | None" = None, *more: str) -> Path:
    """Return the folder of a recipe's first run, in `runs/`: its data, model and pretext task.

    Args:
        recipe: names the data, and the model or the weights to start from
        start: a model to start from, in place of weights
        more: further words
    """
    model = start.config.name if start is not None else recipe.start.weights
    model, task = _model(recipe.model.model or model), recipe.pretext.task
    words = [each for each in (model, task) if each not in ("", "classify")]
    data = recipe.data.data  # the folder that the command is typed in by its own name
    named = data if Path(data).name not in ("", "..") else Path(data).resolve()
    return folder_name(named, *words, *more)


def folder_name(*words: object) -> Path:
    """Return `runs/` and a name made of words; what no file name should have becomes a hyphen.

    A word that is a path counts by its last part.
    """
    return ROOT / "-".join(_word(Path(str(word)).name) for word in words)


def _model(name: str) -> str:
    """Return a model's notation without its list of fields, or the last part of a path."""
    short = re.sub(r"\(.*?\)", "", name)
    # a notation is known by its capitals: ViT-S/16, BiT-R50x1; weights are a path or a Hub id
    return short.replace("/", "-") if re.match(r"[A-Z][\w+-]*(/\d+)?$", short) else short


def _word(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:LONGEST] or "data"


def newest(name: Path) -> Path | None:
    """Return the folder of the highest number that holds something, if there is one."""
    taken = _taken(name)
    return numbered(name, taken[-1]) if taken else None


def next_free(name: Path) -> Path:
    """Return the folder after the newest one: the name itself, then with -2, -3, …"""
    taken = _taken(name)
    return numbered(name, taken[-1] + 1 if taken else 1)


def numbered(name: Path, number: int) -> Path:
    """Return the folder of a number."""
    return name if number == 1 else name.with_name(f"{name.name}-{number}")


def _taken(name: Path) -> list[int]:
    """Return the numbers of the folders of a name that hold something, in order."""
    pattern = re.compile(rf"{re.escape(name.name)}(?:-([2-9]|[1-9]\d+))?")
    found = []
    for place in name.parent.iterdir() if name.parent.is_dir() else ():
        match = pattern.fullmatch(place.name)
        if match and not is_empty(place, LOCK):
            found.append(int(match[1] or 1))
    return sorted(found)
