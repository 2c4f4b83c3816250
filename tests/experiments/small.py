"""The small recipe of the tests of experiments."""

from pathlib import Path

import vitlab
from conftest import BRIEF
from vitlab.recipes.recipe import Host, Recipe

TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/8", "steps": 2, "batch": 8, "warmup": 0.0}
HOST = Host(workers=0, device="cpu", effort=BRIEF)


def recipe(few: Path, **more: object) -> Recipe:
    return vitlab.recipe("small", str(few), **TINY | {"seed": 4, "clip": 0.0} | more)
