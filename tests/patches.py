"""Patches of internals: places in tests that replace a part of the package for a while.

usage: python tests/patches.py PACKAGE TESTS_FOLDER      python tests/patches.py vitlab tests

Counted is, by the syntax tree of every file, each of these whose object is of the package:

- a call of a method `setattr`, `delattr`, `setitem` or `delitem`, of pytest's `monkeypatch`, of a
  `MonkeyPatch` context, or of whatever else has such a method; its object is the first argument
- a call of `patch`, `patch.object`, `patch.dict` or `patch.multiple`, of `unittest.mock` or
  pytest-mock; its object is the first argument
- a call of the function `setattr` or `delattr`; its object is the first argument
- an assignment to, or the deletion of, an attribute or an item; its object is what has it

An object is of the package if it is

- a text that begins with the package's name and a dot, an f-string too
- a name that the file imports from the package, anywhere, or an attribute or item of one, at any
  depth (`engines.BUILDERS`, `subject.gc`): a module, a class, a table, what a module imported
- a name that stands for one of those: after `name = engines.BUILDERS`, or in a loop over several
- `sys.modules` with a key that begins with the package's name, as the argument or the item

What a call returned is not: to replace a method of one model is no patch of its class. A place in
a loop counts once, and so does a place in a fixture of many tests.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from syntax import nodes_of, parse_file

METHODS = {"setattr", "delattr", "setitem", "delitem"}
FUNCTIONS = {"setattr", "delattr", "patch"}
COUNTED = (  # nodes of the syntax tree: what patches, and what gives names
    ast.Import | ast.ImportFrom | ast.Assign | ast.AugAssign | ast.Delete | ast.For
    | ast.comprehension | ast.Call
)  # fmt: skip
MOCKS = {"object", "dict", "multiple"}  # of `patch`


@dataclass(frozen=True)
class Names:
    """What a file calls the parts of a package.

    Attributes:
        package: its name
        known: names in the file
    """

    package: str
    known: frozenset[str]

    def is_part(self, node: ast.expr) -> bool:
        """Return whether an expression is of the package."""
        if isinstance(node, ast.JoinedStr) and node.values:
            node = node.values[0]
        if isinstance(node, ast.Constant):
            text = node.value if isinstance(node.value, str) else ""
            return f"{text}.".startswith(f"{self.package}.")
        if isinstance(node, ast.Subscript) and is_table_of_modules(node.value):
            return self.is_part(node.slice)
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.known


def names_of(nodes: Sequence[ast.AST], package: str) -> Names:
    """Return what a file, of which these are the nodes, calls the parts of a package."""
    known: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            known |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = (each for each in node.names if f"{each.name}.".startswith(f"{package}."))
            known |= {alias.asname or package for alias in ours}
    before = -1
    while len(known) > before:  # a name may stand for one that stands for a part
        before = len(known)
        names = Names(package, frozenset(known))
        for node in nodes:
            known |= set(other_names(node, names))
    return Names(package, frozenset(known))


def other_names(node: ast.AST, names: Names) -> Iterator[str]:
    """Yield the names that a statement, or a loop, gives to parts of the package."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, values = node.targets[0], [node.value]
    elif isinstance(node, ast.For | ast.comprehension):
        target = node.target
        values = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else []
    else:
        return
    plain = (each for each in values if isinstance(each, ast.Name | ast.Attribute | ast.Constant))
    if isinstance(target, ast.Name) and any(map(names.is_part, plain)):
        yield target.id


def patched_objects(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the objects that a node of the syntax tree would change."""
    if isinstance(node, ast.Call) and node.args:
        function = node.func
        if isinstance(function, ast.Name) and function.id in FUNCTIONS:
            yield node.args[0]
        elif isinstance(function, ast.Attribute):
            owner = function.value
            if function.attr in METHODS or function.attr == "patch":
                yield key_of_modules(node.args)
            elif function.attr in MOCKS and "patch" in (
                vars(owner).get("id"),
                vars(owner).get("attr"),
            ):
                yield node.args[0]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute):
            yield target.value
        elif isinstance(target, ast.Subscript):
            yield target if is_table_of_modules(target.value) else target.value


def is_table_of_modules(node: ast.expr) -> bool:
    """Return whether an expression is `sys.modules`."""
    return isinstance(node, ast.Attribute) and node.attr == "modules"


def key_of_modules(arguments: list[ast.expr]) -> ast.expr:
    """Return the first argument; of `setitem(sys.modules, key, …)` the key."""
    if len(arguments) > 1 and is_table_of_modules(arguments[0]):
        return arguments[1]
    return arguments[0]


def find_patches(package: str, folder: Path) -> list[str]:
    """Return where tests patch a package: `file:line object`."""
    places = []
    for file in sorted(folder.rglob("*.py")):
        nodes = [node for node in nodes_of(parse_file(file)) if isinstance(node, COUNTED)]
        names = names_of(nodes, package)
        for node in nodes:
            path = file.relative_to(folder).as_posix()
            for changed in filter(names.is_part, patched_objects(node)):
                places.append(f"{path}:{changed.lineno} {ast.unparse(changed)}")
    return places


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    patches = find_patches(sys.argv[1], Path(sys.argv[2]))
    print(*patches, sep="\n")
    print(f"{len(patches)} patches of internals")
