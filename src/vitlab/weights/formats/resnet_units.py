"""The units of a ResNet, which every format numbers in its own way."""

import re
from collections.abc import Iterable, Iterator, Sequence


def units_of(names: Iterable[str], pattern: str) -> tuple[int, ...]:
    """Count the units in each stage: the pattern finds stage and unit in a tensor's name."""
    found = (re.match(pattern, name) for name in names)
    pairs = {(int(each[1]), int(each[2])) for each in found if each}
    stages = [stage for stage, _ in pairs]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def walk(stages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield stage and unit of every unit, from 0."""
    for stage, units in enumerate(stages):
        for unit in range(units):
            yield stage, unit


def hybrid_parts(stages: Sequence[int]) -> Iterator[tuple[str, int, int, str]]:
    """Yield our name, stage, unit and part of every convolution in a hybrid's stages."""
    for stage, unit in walk(stages):
        for part in ("reduce", "middle", "expand", *["shortcut"] * (unit == 0)):
            yield f"stem.body.stages.{stage}.{unit}.{part}", stage, unit, part
