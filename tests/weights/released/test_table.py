"""The table itself: its rows are those of timm and transformers, by their own constructors."""

import math
import tomllib
from typing import Any

import pytest
import torch
from torch import nn

from docs.pages import ROOT
from oracles import peers
from weights.released.table import WHOLE_NUMBERS, Row, rows

ROWS = rows()
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
SOME, ALL = slice(None, None, 12), slice(None)
EVERY = pytest.param(ALL, marks=pytest.mark.campaign)


def of_timm() -> list[Row]:
    return [row for row in ROWS if "architecture" in row.contents().get("config.json", {})]


def of_transformers() -> list[Row]:
    """Without models of remote code; and one whose text tower the table leaves out."""
    kept = []
    for row in ROWS:
        content = row.contents().get("config.json", {})
        if "model_type" in content and "auto_map" not in content:
            kept.append(row)
    return [row for row in kept if row.contents()["config.json"]["model_type"] != "chinese_clip"]


def test_there_are_enough_rows_and_each_says_where_it_is_from() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) > 100
    for row in ROWS:
        assert row.source, row.name
        assert row.shapes, row.name
        assert row.wanted or row.refused, row.name


def test_the_page_on_weights_counts_the_rows_and_what_can_be_verified() -> None:
    page = " ".join((ROOT / "docs" / "weights.md").read_text(encoding="utf-8").split())
    assert f"a table of {len(ROWS)} released files" in page
    listed = tomllib.loads((ROOT / "benchmarks" / "published.toml").read_text(encoding="utf-8"))
    assert f"for {len(listed['model'])} published models" in page


@pytest.mark.parametrize("which", [SOME, EVERY])
def test_tensors_and_fields_of_timm_are_timms(which: slice) -> None:
    for row in of_timm()[which]:
        content = row.contents()["config.json"]
        with torch.device("meta"):
            model = peers.timm().create_model(
                content["architecture"], num_classes=content["num_classes"]
            )
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        assert row.shapes == shapes, row.name
        for field, value in facts(model).items():
            assert row.wanted.get(field, value) == value, (row.name, field)


def facts(model: nn.Module) -> dict[str, Any]:
    """Heads, epsilon, GELU and pool of a model of timm."""
    assert isinstance(model.blocks, nn.Module)
    heads = {m.num_heads for m in model.blocks.modules() if hasattr(m, "num_heads")}
    acts = {type(m).__name__ for m in model.blocks.modules() if "GELU" in type(m).__name__}
    kinds = {"GELU": "exact", "GELUTanh": "tanh", "QuickGELU": "quick"}
    eps = {m.eps for m in model.blocks.modules() if isinstance(m, nn.LayerNorm)}
    found: dict[str, Any] = {"heads": heads.pop()} if len(heads) == 1 else {}
    found |= {"gelu": kinds[acts.pop()]} if len(acts) == 1 else {}
    found |= {"norm_eps": eps.pop()} if len(eps) == 1 else {}
    pool = POOLS[str(model.global_pool)] if hasattr(model, "global_pool") else ""
    return found | ({"pool": pool} if pool and not hasattr(model, "head_dist") else {})


@pytest.mark.parametrize("which", [SOME, EVERY])
def test_parameters_of_transformers_are_those_of_its_classes(which: slice) -> None:
    """By their number: a module's names and divisions differ from those of the file."""
    transformers = peers.transformers()
    for row in of_transformers()[which]:
        content = row.contents()["config.json"]
        kind = getattr(transformers, content["architectures"][0])
        with torch.device("meta"):
            model = kind(kind.config_class.from_dict(content))
        own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if not any(name.startswith("pooler.") for name in row.shapes):  # some are saved without
            own = {name: shape for name, shape in own.items() if not name.startswith("pooler.")}
        assert numbers(row.shapes) == numbers(own), row.name


def numbers(shapes: dict[str, tuple[int, ...]]) -> int:
    """How many parameters there are."""
    return sum(math.prod(s) for name, s in shapes.items() if not name.endswith(WHOLE_NUMBERS))
