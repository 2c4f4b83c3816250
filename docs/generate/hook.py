"""MkDocs hook: the pages that are generated from the code, so that they cannot drift from it."""

import re
from pathlib import Path
from typing import Any

from api_pages import python_page, room_pages
from command_pages import commands_page
from house_drawing import drawing
from mkdocs.structure.files import File, Files
from option_pages import options_page
from recipe_table import PLACE as RECIPES
from recipe_table import recipe_table

ROOT = Path(__file__).parents[2]
GENERATED = {
    "reference/commands.md": commands_page,
    "reference/options.md": options_page,
    "reference/python.md": python_page,
    "index.md": lambda: from_root("README.md"),
    "changelog.md": lambda: from_root("CHANGELOG.md"),
    "contributing.md": lambda: from_root("CONTRIBUTING.md"),
    "security.md": lambda: from_root("SECURITY.md"),
}
ROOMS = "reference/rooms"
PLACE = "<!-- the house -->"


ON_THE_SITE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def from_root(name: str) -> str:
    """Return a page of the repository's root; its links into docs/ become links of the site."""
    text = (ROOT / name).read_text().replace("](docs/", "](")
    for file, page in ON_THE_SITE.items():
        text = text.replace(f"]({file})", f"]({page})")
    return re.sub(r"\[([^\]]+)\]\((?:NOTICE|CITATION\.cff)\)", r"\1", text)


def on_config(config: Any) -> Any:
    """Add the pages of the rooms to the navigation, under Reference."""
    reference = next(each["Reference"] for each in config.nav if "Reference" in each)
    reference.append({"Every module": [{name: f"{ROOMS}/{name}.md"} for name in room_pages()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those under docs/."""
    pages = {name: make() for name, make in GENERATED.items()}
    pages |= {f"{ROOMS}/{name}.md": page for name, page in room_pages().items()}
    for name, page in pages.items():
        files.append(File.generated(config, name, content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the drawing of the house and the table of recipes where a page asks for them."""
    if PLACE in markdown:
        return markdown.replace(PLACE, drawing(ROOT / "src" / "vitlab"))
    return markdown.replace(RECIPES, recipe_table()) if RECIPES in markdown else markdown
