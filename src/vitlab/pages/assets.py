"""The files of the pages: HTML, CSS and plain JavaScript."""

import importlib.resources

FOLDER = importlib.resources.files(__package__) / "static"
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
SHARED = ("look.css", "photos.js", "answers.js")  # by all pages
# What service.html asks for.
SERVICE = (*SHARED, "service.css", "heat.js", "overlays.js", "service.js")
WEB = (*SHARED, "pixels.js", "runner.js", "web.js")  # what web.html asks for, beside its parts
# What explore.html asks for, and the modules that its own one imports.
OWN = (each.name for each in FOLDER.iterdir() if each.name.startswith("explore"))
EXPLORE = (*SHARED, "heat.js", *(name for name in sorted(OWN) if not name.endswith(".html")))


def asset(name: str) -> bytes:
    """Return one of the files of this package's pages."""
    return (FOLDER / name).read_bytes()


def media_type(name: str) -> str:
    """Return the type of such a file, as HTTP names it."""
    return f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
