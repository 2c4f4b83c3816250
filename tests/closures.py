"""Closures: what one must have read to be sure of a file, it and all that it imports from here.

usage: python tests/closures.py PACKAGE_FOLDER [MODULE ...]

Imports inside functions and for types count; objects reached through a table of texts
("module:object") do not. Last come the files that reach the package by name (`import_module`, a
bare `import vitlab`): each is a table, or a hole. Tokens are words, numbers, strings and
operators, without comments and docstrings; an f-string is one, on every Python.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from syntax import nodes_of, parse_file

SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
ENTRIES = (  # of each, the first name that is there
    "models.vit",
    "data.loading.loader",
    "data.open",
    "tasks.classify|objectives.classify",
    "tasks.detect|objectives.detect",
    "weights.load",
    "weights.formats.google",
    "training.step",
    "training.train|training.run",
    "evaluation.evaluate|evaluation.evaluation",
    "serving.app|serving.serve.app|serve.app",
    "commands.predict",
)
REACHING = ast.Import | ast.ImportFrom | ast.Call  # nodes that can reach other files
STRINGS = ("FSTRING", "TSTRING")  # that are several tokens from Python 3.12, and 3.14, on


def token_types(part: str) -> set[int]:
    """Return the types of the tokens that begin, or end, a string with values in it."""
    names = (f"{kind}_{part}" for kind in STRINGS)
    return {getattr(tokenize, name) for name in names if hasattr(tokenize, name)}


STARTS = token_types("START")
ENDS = token_types("END")


@dataclass(frozen=True)
class Closure:
    """A file and all that it imports from its package.

    Attributes:
        module: the file
        files: how many there are
        tokens: that they have together
    """

    module: str
    files: int
    tokens: int


@dataclass(frozen=True)
class Module:
    """What a file holds, as far as closures go.

    Attributes:
        tokens: that a reader must take in
        imports: the modules of the same package that it imports
        by_name: whether it reaches the package by name
    """

    tokens: int
    imports: frozenset[str]
    by_name: bool


def count_tokens(text: str, nodes: Iterable[ast.AST]) -> int:
    """Return how many tokens of a file a reader must take in.

    Args:
        text: of the file
        nodes: all of its syntax tree
    """
    silent = docstring_lines(nodes)
    count = 0
    depth = 0  # of f-strings within f-strings
    for word in tokenize.generate_tokens(io.StringIO(text).readline):
        is_end = word.type in ENDS
        depth -= is_end
        is_read = word.type not in SILENT and word.start[0] not in silent
        count += is_read and not depth and not is_end
        depth += word.type in STARTS
    return count


def docstring_lines(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def module_names(root: Path) -> dict[str, Path]:
    """Return the files of a package by the names of their modules, below the package's own."""
    names = {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = file
    return names


def read_modules(root: Path) -> dict[str, Module]:
    """Return each module of a package."""
    files = module_names(root)
    modules = {}
    for name, file in files.items():
        text = file.read_text(encoding="utf-8")
        nodes = nodes_of(parse_file(file))
        reaching = [node for node in nodes if isinstance(node, REACHING)]
        targets = {each for node in reaching for each in imported_modules(node, root.name, files)}
        by_name = any(reaches_by_name(node, root.name, files) for node in reaching)
        modules[name] = Module(count_tokens(text, nodes), frozenset(targets), by_name)
    return modules


def imported_modules(node: ast.AST, package: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a statement imports."""
    inside = f"{package}."
    if isinstance(node, ast.ImportFrom) and node.module == package:
        yield from (alias.name for alias in node.names if alias.name in files)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(inside):
        base = (node.module or "").removeprefix(inside)
        names = (base, *(f"{base}.{alias.name}" for alias in node.names))
        yield from (name for name in names if name in files)
    elif isinstance(node, ast.Import):
        whole = (alias.name for alias in node.names if alias.name.startswith(inside))
        yield from (name.removeprefix(inside) for name in whole if name[len(inside) :] in files)


def reaches_by_name(node: ast.AST, package: str, files: Mapping[str, Path]) -> bool:
    """Return whether a statement or a call reaches the package by name."""
    if isinstance(node, ast.ImportFrom) and node.module == package:
        return any(each.name not in files and each.name != "__version__" for each in node.names)
    if isinstance(node, ast.Import):
        return any(alias.name == package for alias in node.names)
    if isinstance(node, ast.Call) and node.args and is_named(node.func, "import_module"):
        said = ast.unparse(node.args[0])
        words = (package, "package", "{")
        return any(word in said for word in words) or len(node.args) > 1
    return False


def is_named(function: ast.expr, word: str) -> bool:
    """Return whether the name of a function, or of what it is looked up in, has a word."""
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(function))
    return any(word in name for name in names)


def closure_of(entry: str, modules: Mapping[str, Module]) -> Closure:
    """Return what one must have read to be sure of a module."""
    reached: set[str] = set()
    waiting = [entry]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += modules[module].imports
    return Closure(entry, len(reached), sum(modules[name].tokens for name in reached))


def find_entry(names: str, modules: Iterable[str]) -> str:
    """Return the first of an entry's names that is there; empty for none."""
    return next((name for name in names.split("|") if name in modules), "")


def main(root: Path, entries: Iterable[str]) -> None:
    """Print files and tokens of the closure of each entry."""
    modules = read_modules(root)
    for names in entries:
        if not (entry := find_entry(names, modules)):
            print(f"{names:26} is not there")
            continue
        closure = closure_of(entry, modules)
        print(f"{entry:26} {closure.files:4} files {closure.tokens:8,} tokens")
    by_name = sorted(name for name, module in modules.items() if module.by_name)
    print(f"reached by name in {len(by_name)} files:", ", ".join(by_name))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:] or ENTRIES)
