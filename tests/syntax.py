"""Syntax trees of files, each read, parsed and walked once for all meters of a process."""

import ast
from functools import cache
from pathlib import Path


def parse_file(file: Path) -> ast.Module:
    """Return the syntax tree of a file as it is now."""
    about = file.stat()
    return _parsed(file, about.st_mtime_ns, about.st_size)


@cache
def _parsed(file: Path, changed: int, size: int) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))
