"""The text of `vitlab/keywords.py`, made from the options.

`PYTHONPATH=src:tests python -m typed.keywords` writes it anew.
"""

import subprocess
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from vitlab.console.leaves import OF_ALL, all_leaves
from vitlab.data.settings import Data
from vitlab.models.config import ResNetConfig, TokenizerConfig, ViTConfig
from vitlab.options import Option, Options, hints, options_of
from vitlab.recipes.head_search import OF_STEPS, TASKS, HeadSearch, MaskOptions
from vitlab.recipes.recipe import Recipe

FILE = Path(__file__).parents[2] / "src" / "vitlab" / "keywords.py"
HEAD = '''"""Keyword arguments of the public functions, as editors and type checkers know them.

Each is an option by its own name and type. The file is made from the options by
`tests/typed/keywords.py`, and a test proves the two equal; `vitlab.options` checks the values.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict
'''
OWN = {"classes", "image_size"}  # arguments of `create` and `load` by themselves
OF_LENGTH = ("epochs", "steps", "budget")  # that a study has otherwise
STATED = {"data", "recipe", "weights", "tune", "loss"}  # of `recipe` and `finetune`


def rendered(hint: Any, choices: Iterable[str] | None = None) -> str:
    """A type as it is written: a list or a tuple where the option takes any number of values."""
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(rendered(each, choices) for each in get_args(hint))
    if hint is str and choices:
        hint = Literal[tuple(choices)]
    if get_origin(hint) is Literal:
        return f"Literal[{', '.join(map(repr, get_args(hint)))}]".replace("'", '"')
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if parts[-1] is Ellipsis:
            return f"Sequence[{rendered(parts[0])}]"
        return f"tuple[{', '.join(map(rendered, parts))}]"
    return "None" if hint is types.NoneType else hint.__name__


def merged(several: list[Any]) -> Any:
    """One type for what several kinds of models have by the same name."""
    first, *others = several
    if get_origin(first) is Literal:
        return Literal[tuple(dict.fromkeys(arg for each in several for arg in get_args(each)))]
    assert all(each == first for each in others), several
    return first


def of_models() -> dict[str, str]:
    """The fields of every kind of model."""
    kinds = (ViTConfig, ResNetConfig, TokenizerConfig)
    found: dict[str, tuple[list[Any], Option]] = {}
    for kind in kinds:
        for name, about in options_of(kind).items():
            found.setdefault(name, ([], about))[0].append(hints(kind)[name])
    return {
        name: rendered(merged(types_), _words(about)) for name, (types_, about) in found.items()
    }


def of(*kinds: type[Options]) -> dict[str, str]:
    """Options of some groups, the nested ones included."""
    leaves = [leaf for kind in kinds for leaf in all_leaves(kind) if leaf not in OF_ALL]
    return {leaf.name: rendered(leaf.hint, _words(leaf.about)) for leaf in leaves}


def _words(about: Option) -> list[str]:
    choices: Callable[[], Iterable[str]] | None = about.choices
    return list(choices()) if choices else []


def text() -> str:
    """The whole file."""
    models, recipe = of_models(), of(Recipe)
    labels = {"labels": models["labels"]}
    bare = {name: each for name, each in models.items() if name not in OWN | {"labels"}}
    steps = {"model": recipe["model"]}
    taken = OF_STEPS - STATED | {"task"}
    steps |= {name: each for name, each in recipe.items() if name in taken}
    lengths = {name: steps.pop(name) for name in OF_LENGTH}
    elsewhere = (models.keys() | taken | STATED | {"model"}) - OWN
    kept = {name: each for name, each in recipe.items() if name not in elsewhere}
    assert of(Data).keys() - STATED <= kept.keys()
    head = {name: recipe[name] for name in ("weights", "tune", "loss")}
    probes = {"task": rendered(Literal[TASKS])} | of(HeadSearch, MaskOptions)
    parts = [
        _part("ModelKeywords", "TypedDict", "Fields of any kind of model.", bare),
        _part("CreateKeywords", "ModelKeywords", "What `create` and `load` take.", labels),
        _part(
            "DataKeywords", "ModelKeywords", "Data, what the model sees and says, the seed.", kept
        ),
        _part("ProbeKeywords", "DataKeywords", "What `probe` takes.", probes),
        _part("StudyKeywords", "DataKeywords", "What `study` takes.", steps),
        _part("FinetuneKeywords", "StudyKeywords", "What `finetune` takes.", lengths),
        _part("RecipeKeywords", "FinetuneKeywords", "What `recipe` takes.", head),
    ]
    return "\n".join([HEAD, *parts])


def _part(name: str, base: str, about: str, entries: dict[str, str]) -> str:
    lines = [f"    {key}: {kind}" for key, kind in entries.items()]
    return "\n".join(
        ["", f"class {name}({base}, total=False):", f'    """{about}"""', "", *lines, ""]
    )


def formatted(source: str) -> str:
    """The same as ruff formats it."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    FILE.write_text(formatted(text()))
