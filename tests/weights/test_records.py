"""Records of families: the notation, and that every word of every record is a field."""

import pytest

from vitlab.models.config import ViTConfig
from vitlab.options import options_of
from vitlab.weights.formats.dialects import DIALECTS
from vitlab.weights.formats.google import REPRESENTED
from vitlab.weights.formats.records import found_in, limits, record, records, rules
from vitlab.weights.formats.timm import architectures
from vitlab.weights.formats.transformers.families import FAMILIES

OWN = options_of(ViTConfig).keys()


def test_the_notation() -> None:
    assert record("") == {}
    assert record("norm_eps 1e-5, pool token,\n  sizes [1,2], on true, none null") == {
        "norm_eps": 1e-5, "pool": "token", "sizes": [1, 2], "on": True, "none": None,
    }  # fmt: skip
    assert record("@HALF, crop 1.0") == {"mean": (0.5,), "std": (0.5,), "crop": 1.0}
    assert limits("stem linear|resnet, bias true") == {
        "stem": ("linear", "resnet"),
        "bias": (True,),
    }
    table = records("""
        BASE
            width 1,
            depth 2
        _a|
            |_b_  @BASE, depth 3
        _b_  heads 4
    """)
    assert table == {
        "BASE": {"width": 1, "depth": 2}, "_a||_b_": {"width": 1, "depth": 3}, "_b_": {"heads": 4},
    }  # fmt: skip
    assert found_in(table, "a_b_c") == {"width": 1, "depth": 3, "heads": 4}
    assert rules("a  b c\nd  e") == {"a": "b c", "d": "e"}
    with pytest.raises(KeyError, match="IMAGENETT"):
        record("@IMAGENETT")


def test_every_word_is_a_field() -> None:
    """No type checker reads them."""
    texts = [text for each in DIALECTS for text in (each.facts, each.usual)]
    texts += [family.prepared for family in FAMILIES.values()]
    texts += [each.reads for each in FAMILIES.values() if isinstance(each.reads, str)]
    texts += [
        row.strip("- ")
        for number, row in enumerate(architectures.FAMILIES.strip().splitlines())
        if number % 3
    ]
    found = [*map(record, texts), *architectures.FIELDS.values(), REPRESENTED]
    assert {word for each in found for word in each} - OWN == set()
