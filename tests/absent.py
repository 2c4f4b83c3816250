"""Packages that are as if not installed, in an interpreter of its own and its children."""

CODE = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        absent = name.split(".")[0] in ABSENT
        return None if absent else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def without(*names: str) -> str:
    """Code that comes before all imports, or into a `sitecustomize.py`."""
    return CODE.replace("ABSENT", repr(names))
