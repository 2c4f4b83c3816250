"""Diction: habits that make code hard to read, counted by its syntax tree; each may only fall.

usage: python tests/diction.py PACKAGE_FOLDER [--show HABIT]

participles   functions whose first word is a past participle or an adverb-like word (found,
              told_apart, beside); functions are verbs, `is_`, `has_`, `can_` are questions
one_word      public functions and methods of one word (for information: some are right)
parameters    functions of more than 6 parameters, those of `__init__.pyi` aside
splats        calls with *name of a tuple or list built elsewhere
packed        two or more assignments in one statement (a, b = x, y), constants aside
conditional   text * (condition)
fields        classes of more than 12 annotated fields; classes of options, typed dictionaries and
              records of JSON keys aside (their bases say so)
twice         public names defined in two or more files
parsed_text   multi-line strings of more than 10 lines outside docstrings (facts that code parses)
vague         locals and arguments named own, found, each, there, known, how, what, given, kept,
              told
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from syntax import nodes_of, parse_file

PARTICIPLE = re.compile(
    r"^(\w*(ed|en)|found|known|given|kept|told|said|held|left|made|drawn|shown|begun|gone|own"
    r"|others?|leaving|lacking|missing|beside|within|beyond|between|elsewhere|there|unlike|several"
    r"|rest|under|after|before|around|apart|when)$"
)
NOT_PARTICIPLES = {
    "open", "embed", "need", "feed", "seed", "speed", "listen", "token", "tokens", "screen",
    "shed", "flatten", "widen", "len", "even", "children", "bed", "proceed", "exceed", "succeed",
    "seen", "hidden", "masked",
}  # fmt: skip
# bases whose fields are keys users write
KEYED = re.compile(r"Options|TypedDict|Keywords|Record|AttributeDict|Config$")
VAGUE = {"own", "found", "each", "there", "known", "how", "what", "given", "kept", "told"}
HABITS = (
    "participles", "one_word", "parameters", "splats", "packed", "conditional", "fields", "twice",
    "parsed_text", "vague",
)  # fmt: skip
Habit = tuple[str, str]  # its name, and where it stands
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_habits(root: Path) -> dict[str, list[str]]:
    """Return where each habit stands: `file:line name`."""
    places: dict[str, list[str]] = {habit: [] for habit in HABITS}
    public: dict[str, set[str]] = defaultdict(set)
    homes = stable_names(root / "__init__.pyi")
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        tree = parse_file(file)
        for name in public_names(tree):
            public[name].add(path.as_posix())
        module = ".".join((root.name, *path.with_suffix("").parts))
        stable = {name for home, name in homes if home == module}
        for node in nodes_of(tree):
            for habit, words in habits_of(node, stable):
                line = getattr(node, "lineno", 0)
                places[habit].append(f"{path.as_posix()}:{line} {words}".rstrip())
        places["parsed_text"] += [f"{path.as_posix()}:{line}" for line in long_texts(tree)]
    for name, files in sorted(public.items()):
        if len(files) > 1:
            places["twice"].append(f"{name}: {', '.join(sorted(files))}")
    return places


def stable_names(stub: Path) -> set[tuple[str, str]]:
    """Return home and name of each `from HOME import NAME as NAME`: their arguments are stable."""
    lines = stub.read_text(encoding="utf-8").splitlines() if stub.is_file() else []
    words = (line.split() for line in lines)
    return {(each[1], each[3]) for each in words if each[:1] == ["from"] and len(each) > 3}


def public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions and classes that a file defines."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def habits_of(node: ast.AST, stable: set[str]) -> Iterator[Habit]:
    """Yield the habits that a node of the syntax tree shows.

    Args:
        node: a part of a file
        stable: the functions of the file whose arguments are stable
    """
    if isinstance(node, Function):
        yield from habits_of_function(node, stable)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                yield "splats", f"*{argument.value.id}"
    elif isinstance(node, ast.Assign):
        if is_packed(node):
            yield "packed", ""
    elif isinstance(node, ast.BinOp):
        if is_conditional(node):
            yield "conditional", ""
    elif isinstance(node, ast.ClassDef):
        fields = sum(isinstance(each, ast.AnnAssign) for each in node.body)
        if fields > 12 and not any(KEYED.search(ast.unparse(base)) for base in node.bases):
            yield "fields", f"{node.name}: {fields}"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
        yield "vague", node.id


def habits_of_function(node: Function, stable: set[str]) -> Iterator[Habit]:
    """Yield the habits that the head of a function shows."""
    name = node.name
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    count = sum(each.arg not in ("self", "cls") for each in arguments)
    first = name.strip("_").split("_")[0]
    if not name.startswith("__") and PARTICIPLE.match(first) and first not in NOT_PARTICIPLES:
        yield "participles", name
    if not name.startswith("_") and "_" not in name:
        yield "one_word", name
    if count > 6 and name not in stable:
        yield "parameters", f"{name}: {count}"
    for argument in arguments:
        if argument.arg in VAGUE:
            yield "vague", argument.arg


def is_packed(node: ast.Assign) -> bool:
    """Return whether a statement assigns two values or more, constants aside."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    return not all(isinstance(each, ast.Constant) for each in node.value.elts)


def is_conditional(node: ast.BinOp) -> bool:
    """Return whether a text is multiplied by a condition."""
    left = node.left
    is_text = isinstance(left, ast.Constant) and isinstance(left.value, str)
    if not isinstance(node.op, ast.Mult) or not (is_text or isinstance(left, ast.JoinedStr)):
        return False
    return isinstance(node.right, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call)


def long_texts(tree: ast.Module) -> Iterator[int]:
    """Yield the first lines of long texts that are no docstrings."""
    documented = {
        id(node.body[0].value)
        for node in nodes_of(tree)
        if isinstance(node, ast.Module | ast.ClassDef | Function)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines = (node.end_lineno or 0) - node.lineno
            if lines > 10 and node.value.count("\n") > 10 and id(node) not in documented:
                yield node.lineno


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    found_habits = find_habits(Path(sys.argv[1]))
    if "--show" in sys.argv:
        print(*found_habits[sys.argv[sys.argv.index("--show") + 1]], sep="\n")
    else:
        for habit in HABITS:
            print(f"{habit:12} {len(found_habits[habit]):6,}")
