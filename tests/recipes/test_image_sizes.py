"""A resolution that the patch does not divide, through every face, and the advice followed."""

import re
from collections.abc import Callable

import pytest

import vitlab
from vitlab.errors import OptionError
from vitlab.recipes.model_part import model_part

ADVICE = re.compile(r"^image_size=.+ is not a multiple of [^:]*?(\d+)[^:]*: try (.+)$")
NARROW = "ViT(width=16,depth=1,heads=2,mlp=32)"


def advised(message: str) -> list[tuple[int, int]]:
    """The sizes that a message recommends: `16 or 20`, or `(16 or 20, 28 or 32)`."""
    found = ADVICE.match(message)
    assert found is not None, message
    sides = [[int(side) for side in re.findall(r"\d+", part)] for part in found[2].split(",")]
    assert all(side % int(found[1]) == 0 for each in sides for side in each)
    return list(zip(sides[0], sides[-1], strict=True))


FACES: dict[str, Callable[[int | tuple[int, int]], object]] = {
    "create": lambda size: vitlab.create(f"{NARROW}/16", classes=3, image_size=size),
    "recipe": lambda size: vitlab.recipe("small", "x", model=f"{NARROW}/16", image_size=size),
    "changed": lambda size: vitlab.recipe("small", "x").changed(image_size=size),
    "part": lambda size: model_part(f"{NARROW}/16", image_size=size).check(),
    "axial": lambda size: model_part("Axial-ResNet-50", image_size=size).check(),
    "patch first": lambda size: vitlab.recipe("small", "x", patch=16, image_size=size),
}


@pytest.mark.parametrize("face", FACES)
def test_python(face: str) -> None:
    for size in (225, 9, (32, 40), (17, 16)):
        with pytest.raises(OptionError) as caught:
            FACES[face](size)
        for better in advised(str(caught.value)):
            FACES[face](better)
