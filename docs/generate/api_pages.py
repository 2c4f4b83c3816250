"""The Python reference: the public names, and every module, rendered from docstrings."""

import inspect
import pkgutil
import re
from pathlib import Path

import vitlab

GROUPS = {
    "Models": (
        "create",
        "fuse",
        "preprocess",
        "ViTConfig",
        "ResNetConfig",
        "VisionTransformer",
        "ResNet",
    ),
    "Weights": ("load", "save", "export", "push", "delta", "Delta", "MultiTask", "soup"),
    "Training": (
        "recipe",
        "train",
        "finetune",
        "sweep",
        "cross_validate",
        "repeat",
        "study",
        "Recipe",
        "Host",
        "Run",
    ),
    "Evaluation": (
        "evaluate",
        "compare",
        "calibrate",
        "choose_thresholds",
        "classify",
        "inductive_bias",
        "fewshot",
        "duplicates",
        "search",
    ),
    "Service": ("Client", "AsyncClient"),
    "Errors": (),
    "Modules": (),
}
ERRORS = "vitlab.errors"
INSIDE = tuple(vitlab.inspect.__all__)
MODULES = {"measure": ("cost",), "inspect": INSIDE, "adapters": ("transformers",)}


def python_page() -> str:
    """Return the page of the public names; a name in no group comes last, so none is left out."""
    named = {name for names in GROUPS.values() for name in names} | set(MODULES)
    rest = [n for n in vitlab.__all__ if n not in named and not n.endswith("Error")]
    lines = [
        "# Python", "",
        "The public names, as `import vitlab` gives them; "
        "[CONTRIBUTING](../contributing.md#the-stable-surface) says what may change.", "",
        "| name | | since |", "| --- | --- | --- |",
        *(f"| [`{n}`](#{place(n)}) | {about(n)} | {when} |" for n, when in since().items()), "",
    ]  # fmt: skip
    for title, names in (GROUPS | {"Others": tuple(rest)}).items():
        public = [f"vitlab.{name}" for name in names if name in vitlab.__all__]
        if title == "Errors":
            public = [ERRORS]
        if title == "Modules":
            public = [f"vitlab.{name}" for name in MODULES if name in vitlab.__all__]
        if public:
            lines += [f"## {title}", ""]
        for name in public:
            lines += [f"::: {name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def place(name: str) -> str:
    """Return the anchor of a public name; errors have theirs in their module."""
    return f"{ERRORS}.{name}" if name.endswith("Error") else f"vitlab.{name}"


def since() -> dict[str, str]:
    """Return the version that each public name came with, as `__init__.pyi` says."""
    found, version = {}, ""
    for line in Path(vitlab.__file__).with_suffix(".pyi").read_text().splitlines():
        if heading := re.fullmatch(r"# since (\S+)", line):
            version = heading[1]
        elif imported := re.fullmatch(r"from \S+ import \w+ as (\w+)", line):
            found[imported[1]] = version
    return dict(sorted(found.items(), key=lambda each: each[0].lower()))


def about(name: str) -> str:
    """Return the first sentence of a name's docstring."""
    text = (inspect.getdoc(getattr(vitlab, name)) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def room_pages() -> dict[str, str]:
    """Return a page per room, with every module in it; the files at the ground share one."""
    pages = {}
    ground = []
    for module in pkgutil.iter_modules(vitlab.__path__, "vitlab."):
        name = module.name.removeprefix("vitlab.")
        if module.ispkg:
            pages[name] = _rendered(f"vitlab.{name}", [module.name])
        elif not name.startswith("__"):
            ground.append(module.name)
    return {"ground": _rendered("The ground of vitlab", ground)} | pages


def _rendered(title: str, modules: list[str]) -> str:
    options = ["    options:", "      show_submodules: true", "      show_source: true", ""]
    return "\n".join(
        [f"# {title}", ""] + [line for m in modules for line in [f"::: {m}", *options]]
    )
