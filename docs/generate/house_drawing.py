"""A drawing of the house, an SVG made from the imports in the code: floors, rooms and arrows.

`python docs/generate/house_drawing.py` prints it.

A room is a folder of the package, or a file at its ground. A room stands one floor above the
highest room that it imports from; rooms that import from each other (no two of their files do)
stand side by side. An arrow that follows from others is left out.
"""

import ast
import re
import sys
from html import escape
from pathlib import Path

WIDTH, ROOM, STOREY, GAP = 560, 40, 66, 8


def imports(package: Path) -> dict[str, set[str]]:
    """Return the rooms that each room imports from.

    Imports in functions and under TYPE_CHECKING count, and so do the texts "module:object" of
    tables.
    """
    rooms: dict[str, set[str]] = {}
    for file in sorted(package.rglob("*.py")):
        room = file.relative_to(package).with_suffix("").parts[0]
        if room in ("__init__", "__main__"):  # the doors of the house
            continue
        found = rooms.setdefault(room, set())
        for node in ast.walk(ast.parse(file.read_text())):
            found |= {other for other in _targets(node) if other != room}
    return {room: {each for each in found if each in rooms} for room, found in rooms.items()}


def _targets(node: ast.AST) -> set[str]:
    """Return the first names below `vitlab` that a node of the syntax tree reaches for."""
    if isinstance(node, ast.ImportFrom) and node.module == "vitlab":
        return {each.name for each in node.names}
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module]
    elif isinstance(node, ast.Import):
        names = [each.name for each in node.names]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = re.findall(r"^(vitlab\.[a-z0-9_.]+):\w+$", node.value)
    return {name.split(".")[1] for name in names if name.startswith("vitlab.")}


def below(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the rooms that each room reaches over any number of imports."""
    reached = {room: set(others) for room, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return reached


def floors(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms by floor, lowest first; rooms that reach each other share one."""
    reached, level = below(graph), dict.fromkeys(graph, 0)
    for room in sorted(graph, key=lambda each: len(reached[each] - neighbors(each, reached))):
        under = reached[room] - neighbors(room, reached)
        level[room] = 1 + max((level[other] for other in under), default=-1)
    return [sorted(r for r in level if level[r] == n) for n in range(1 + max(level.values()))]


def neighbors(room: str, reached: dict[str, set[str]]) -> set[str]:
    """Return the rooms, itself included, that a room reaches and that reach it."""
    return {room} | {other for other in reached[room] if room in reached[other]}


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows down that do not follow from others."""
    reached = below(graph)
    down = {room: others - neighbors(room, reached) for room, others in graph.items()}
    return {
        room: {
            o for o in others if not any(o in reached[p] for p in others - neighbors(o, reached))
        }
        for room, others in down.items()
    }


def drawing(package: Path) -> str:
    """Return the drawing as one SVG element in the colors of the page."""
    graph = imports(package)
    storeys = floors(graph)
    height = STOREY * len(storeys)
    place: dict[str, tuple[float, float, float]] = {}  # left, top, width
    for number, rooms in enumerate(storeys):
        unit = (WIDTH - GAP * (len(rooms) + 1)) / sum(len(room) + 2 for room in rooms)
        wide = [min(unit * (len(room) + 2), 140.0) for room in rooms]
        left = (WIDTH - sum(wide) - GAP * (len(rooms) - 1)) / 2
        for room, width in zip(rooms, wide, strict=True):
            place[room] = left, height - STOREY * (number + 1) + 13, width
            left += width + GAP
    size = {room: _files(package, room) for room in graph}
    arrows = [
        _arrow(place[a], place[b]) for a, others in direct(graph).items() for b in sorted(others)
    ]
    boxes = [_box(room, *place[room], size[room]) for room in graph]
    title = "The rooms of vitlab; each arrow points to a room that is imported from"
    return "\n".join(
        [
            f'<svg class="house" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'role="img" aria-label="{title}">',
            '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" '
            'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z"/></marker></defs>',
            *arrows,
            *boxes,
            "</svg>",
        ]
    )


def _files(package: Path, room: str) -> int:
    """Return the number of Python files in a room, `__init__.py` left out."""
    return sum(each.name != "__init__.py" for each in (package / room).rglob("*.py")) or 1


def _box(room: str, left: float, top: float, width: float, files: int) -> str:
    middle = left + width / 2
    count = f"{files} files" if files > 1 else "1 file"
    size = f"font-size:{min(12.0, (width - 6) / (0.55 * len(room))):.1f}px"  # it fits into its box
    return (
        f'<g><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROOM}" rx="4"/>'
        f'<text x="{middle:.1f}" y="{top + 18}" style="{size}">{escape(room)}</text>'
        f'<text class="small" x="{middle:.1f}" y="{top + 32}">{count}</text></g>'
    )


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    x, y = start[0] + start[2] / 2, start[1] + ROOM
    to_x, to_y = end[0] + end[2] / 2, end[1] - 1
    bend = min(40.0, (to_y - y) / 2)
    curve = f"{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y}"
    return f'<path d="M{x:.1f} {y}C{curve}"/>'


if __name__ == "__main__":
    sys.stdout.write(drawing(Path(__file__).parents[2] / "src" / "vitlab") + "\n")
