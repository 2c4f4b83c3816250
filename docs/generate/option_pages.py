"""The table of every option, from the fields that declare them."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args

import vitlab
from vitlab.options import Option, Options, hints, options_of
from vitlab.values import described

HEAD = "| option | default | values | meaning |\n| --- | --- | --- | --- |"


def options_page() -> str:
    """Return the page, one table per group of options."""
    parts = [
        "# Options",
        "",
        "Every option of models, recipes and commands, read from the line that declares it.",
        "The command line writes `--layer-scale 1e-4` where Python and `run.toml` write",
        "`layer_scale=1e-4`; all three refuse the same values in the same words.",
        "",
    ]
    for kind in groups():
        about = (inspect.getdoc(kind) or "").splitlines()[0]
        parts += [f"## {kind.__name__}", "", about, "", HEAD, *rows(kind), ""]
    return "\n".join(parts)


WITHOUT = ("vitlab.__main__", "vitlab.adapters.")  # no options; adapters need other libraries


def groups() -> list[type[Options]]:
    """Return every class that declares options of its own, in the order of their files.

    A class without a source of its own is generated from the fields of another.
    """
    for module in pkgutil.walk_packages(vitlab.__path__, "vitlab."):
        if not module.name.startswith(WITHOUT):
            importlib.import_module(module.name)
    lines = {kind: _line(kind) for kind in set(_below(Options)) if own_options(kind)}
    written = [kind for kind, line in lines.items() if line]
    return sorted(written, key=lambda kind: (kind.__module__, lines[kind]))


def _line(kind: type) -> int:
    try:
        return inspect.getsourcelines(kind)[1]
    except OSError:
        return 0


def _below(kind: type[Options]) -> Iterator[type[Options]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("vitlab."):
            yield each
        yield from _below(each)


def own_options(kind: type[Options]) -> dict[str, Option]:
    """Return the options that a class adds to those of its bases."""
    bases = [base for base in kind.__mro__[1:] if is_dataclass(base) and issubclass(base, Options)]
    older = {name for base in bases for name in options_of(base)}
    return {name: about for name, about in options_of(kind).items() if name not in older}


def rows(kind: type[Options]) -> list[str]:
    """Return the rows of a group's table."""
    defaults = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type]
    return [
        f"| `{name}` | {_shown(defaults[name])} | {values(kind, name, about)} | {meaning(about)} |"
        for name, about in own_options(kind).items()
    ]


def values(kind: type[Options], name: str, about: Option) -> str:
    """Return what an option may be: its type and its bounds, in words."""
    if about.choices:
        return ", ".join(f"`{word}`" for word in about.choices())
    hint = hints(kind)[name]
    some = [each for each in get_args(hint) if each is not type(None)]
    only = some[0] if len(some) == 1 and type(None) in get_args(hint) else hint
    bounds = " and ".join(bound.words for bound in about.bounds)
    return _escaped(", ".join(each for each in (described(only), bounds) if each))


def meaning(about: Option) -> str:
    """Return the help of an option, and when it applies."""
    return _escaped(about.help + (f"; applies only {about.only.words}" if about.only else ""))


def _shown(default: Any) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, tuple):
        return f"`{' '.join(map(str, default))}`" if default else ""
    return "" if default in ("", None) else f"`{default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
