"""Local paths in the recipe of a run: where each of them leads now, whatever the working folder."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePath
from typing import Any, Self

from vitlab.data.exists import is_built_in, is_hub_data
from vitlab.recipes.recipe import Recipe
from vitlab.recorded_paths import is_same_place, is_there, places, seen_from
from vitlab.weights.hub import is_hub_name

DATA = ("data", "images", "cache_data")
PARTS = {  # of a recipe, and which of their options are paths
    "data": DATA, "start": ("weights",), "pretext": ("tokenizer",), "distill": ("teacher",),
}  # fmt: skip
PATHS = tuple(name for names in PARTS.values() for name in names)
OF_DATA = (*DATA, "probe")


def nearby(tables: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the local paths in the tables of a recipe and of its host, as seen from a folder.

    Args:
        tables: by name, as `run.toml` has them
        folder: of the file that records them, which need not exist yet
    """
    parts = PARTS | {"host": ("probe",)}
    found = {
        name: _seen_from(folder, name, tables.get(part, {}).get(name))
        for part, names in parts.items()
        for name in names
    }
    return {name: each for name, each in found.items() if each is not None}


def _seen_from(folder: Path, name: str, value: object) -> str | None:
    if not isinstance(value, str) or (name in OF_DATA and is_built_in(value)):
        return None
    return seen_from(folder, value)


@dataclass(frozen=True)
class LocalPaths:
    """The paths that the file of a run, or of several runs, records.

    Attributes:
        folder: of the file
        typed: each of them as it was typed, by the name of the option
        nearby: as seen from the folder; older files do not have it
    """

    folder: Path
    typed: dict[str, str]
    nearby: dict[str, str]

    @classmethod
    def of(cls, tables: dict[str, Any], folder: Path) -> Self:
        """Return the paths in the tables of `run.toml`.

        Args:
            tables: by name; without `nearby` in older ones
            folder: of the file
        """
        typed = {name: tables.get(part, {}).get(name) for part in PARTS for name in PARTS[part]}
        near = tables.get("nearby", {})
        return cls(folder, dict.fromkeys(PATHS, "") | _texts(typed), _texts(near))

    def places(self, name: str) -> list[str]:
        """Return where a path may lead now, the likeliest first; nothing if it is nowhere."""
        typed = self.typed[name]
        if not typed or (name in OF_DATA and is_built_in(typed)):
            return []
        return places(typed, self.nearby.get(name), self.folder, self.folder.absolute().parent)

    def is_place(self, name: str, now: str) -> bool:
        """Return whether a path as it is typed now leads where the recorded one may."""
        typed = self.typed[name]
        return is_same_place(now, typed) or any(is_same_place(now, p) for p in self.places(name))

    def leads_to(self, recipe: Recipe) -> bool:
        """Return whether all paths of a recipe are recorded ones, but for that of a cache."""
        return all(
            self.is_place(name, each)
            for name, each in _paths_of(recipe).items()
            if name != "cache_data"
        )

    def here(self, recipe: Recipe) -> Recipe:
        """Return a recipe with each recorded path as it can be opened from here.

        What may be a name on the Hub stays one, unless the file says that it was a path.
        """

        def open_place(name: str, typed: str) -> str:
            on_hub = is_hub_data(typed) if name in OF_DATA else is_hub_name(typed)
            found = [] if on_hub and name not in self.nearby else self.places(name)
            return found[0] if found else typed

        return self._with(
            recipe, {name: open_place(name, each) for name, each in self.typed.items()}
        )

    def as_recorded(self, recipe: Recipe) -> Recipe:
        """Return a recipe with paths as they are recorded, where they lead to the same place."""
        now = _paths_of(recipe)
        return self._with(
            recipe, {name: self.typed[name] for name in now if self.is_place(name, now[name])}
        )

    def retype(self, recipe: Recipe, now: Recipe) -> Recipe:
        """Return a recipe with the paths that another one names, as recorded where they can be."""
        named = {name: path for name, path in _paths_of(now).items() if path}
        return self.as_recorded(self._with(recipe, named))

    def reach(self, recipe: Recipe) -> Recipe:
        """Return a recipe whose paths lead somewhere, also where they were typed elsewhere."""
        here = _paths_of(self.here(recipe))
        now = _paths_of(recipe)
        lost = {
            name for name, path in now.items() if path == self.typed[name] and not is_there(path)
        }
        return self._with(recipe, {name: here[name] for name in lost})

    def ways(self, recipe: Recipe, part: str) -> Iterator[Recipe]:
        """Yield a recipe with each place that the recorded paths of a part may lead to.

        First comes the recipe as it is. A path that leads elsewhere than the recorded one stays.

        Args:
            recipe: with paths as they are typed now
            part: of the recipe, such as `data`
        """
        now = _paths_of(recipe)
        choices = []
        for name in PARTS[part]:
            others = self.places(name) if self.is_place(name, now[name]) else []
            there = is_there(now[name]) or not others
            choices.append(dict.fromkeys([now[name]] * there + others))
        for each in product(*choices):
            yield self._with(recipe, dict(zip(PARTS[part], each, strict=True)))

    def _with(self, recipe: Recipe, paths: dict[str, str]) -> Recipe:
        changed = {
            part: replace(getattr(recipe, part), **{n: paths[n] for n in names if n in paths})
            for part, names in PARTS.items()
            if any(name in paths for name in names)
        }
        return replace(recipe, **changed)


def instead_of(begun: Recipe, given: dict[str, Any]) -> dict[str, Any]:
    """Return options that continue a run, also where they are typed in another folder than then.

    A path that is not there, and has the last name of the run's, is that one.

    Args:
        begun: the run's recipe, with paths that can be opened from here
        given: options by name, as they are typed now
    """
    known = _paths_of(begun)
    same = {
        name: known[name]
        for name, path in _texts(given).items()
        if name in known and not is_there(path) and is_there(known[name])
        if PurePath(path).name == PurePath(known[name]).name
    }
    return given | same


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: each for name, each in values.items() if isinstance(each, str)}


def _paths_of(recipe: Recipe) -> dict[str, str]:
    return {name: getattr(getattr(recipe, part), name) for part in PARTS for name in PARTS[part]}
