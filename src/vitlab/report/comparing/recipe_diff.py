"""Differences between the recipes of several runs; which of them differ in their seed alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vitlab.options import Options, hints, options_of
from vitlab.recipes.model_part import ModelPart
from vitlab.recipes.recipe import Recipe
from vitlab.report.comparing.entry import Entry
from vitlab.report.page import setting

MISSING = "not known"


@dataclass(frozen=True)
class Differing:
    """An option as the command line spells it, and its value in each run, as text."""

    option: str
    values: tuple[str, ...]


def differing(entries: Sequence[Entry]) -> list[Differing]:
    """Return the options of the recipes that are not the same in all runs.

    Options that a kind of model does not have are a dash there.
    """
    known = [options_in(each.recipe) if each.recipe else None for each in entries]
    names = list(dict.fromkeys(name for each in known if each for name in each))
    rows = [
        Differing(
            name,
            tuple(MISSING if each is None else setting(each.get(name)) for each in known),
        )
        for name in names
    ]
    return [*_apart(rows), *_apart(_code(entries))]


def surroundings(entries: Sequence[Entry]) -> list[Differing]:
    """Return what else differs: the device, and versions of the libraries."""
    tables = [each.folder.tables for each in entries]
    names = list(dict.fromkeys(name for each in tables for name in each.get("versions", {})))
    rows = [
        Differing(name, tuple(setting(each.get("versions", {}).get(name)) for each in tables))
        for name in names
    ]
    devices = [
        each.result.get("device") or table.get("host", {}).get("device")
        for each, table in zip(entries, tables, strict=True)
    ]
    return _apart([Differing("device", tuple(map(setting, devices))), *rows])


def options_in(recipe: Recipe) -> dict[str, Any]:
    """Return every option of a recipe by its name on the command line, `--layer-scale`."""
    return dict(_options(recipe))


def seed_groups(entries: Sequence[Entry]) -> list[list[int]]:
    """Return the numbers of finished runs that differ in their seed alone, each group together."""
    groups: list[tuple[object, list[int]]] = []
    for number, each in enumerate(entries):
        if each.recipe is None or not each.result:
            continue
        rest = {k: v for k, v in options_in(each.recipe).items() if k != "--seed"}
        mark = (rest, each.folder.fingerprint, each.folder.code, each.folder.base)
        same = next((own for other, own in groups if other == mark), None)
        if same is None:
            groups.append((mark, [number]))
        else:
            same.append(number)
    return [own for _, own in groups if len({entries[number].seed for number in own}) > 1]


def _options(group: Options) -> Iterator[tuple[str, Any]]:
    """Yield the options of a group, those of nested groups after its own."""
    kind = type(group)
    about, nested = options_of(kind), []
    standard = _standard(group)
    for name in hints(kind):
        value = getattr(group, name)
        if isinstance(value, Options):
            nested.append(value)
        else:
            word = about[name].flag if name in about and about[name].flag else name
            yield f"--{word.replace('_', '-')}", standard.get(name) if value is None else value
    for each in nested:
        yield from _options(each)


def _standard(group: Options) -> dict[str, Any]:
    """Return the values of fields that a model's part leaves out, as older runs do."""
    if not isinstance(group, ModelPart):
        return {}
    return {each.name: each.default for each in fields(group.CONFIG)}


def _code(entries: Sequence[Entry]) -> list[Differing]:
    """Return the user's own functions, and how often options were changed while a run went on."""
    codes = [each.folder.code for each in entries]
    rows = [
        Differing(f"{name}= (Python)", tuple(setting(code.get(name)) for code in codes))
        for name in ("transform", "loss")
    ]
    changes: list[Any] = [each.folder.tables.get("changes", []) for each in entries]
    return [*rows, Differing("changed while it ran", tuple(setting(len(each)) for each in changes))]


def _apart(rows: Sequence[Differing]) -> list[Differing]:
    return [row for row in rows if len(set(row.values)) > 1]
