"""All figures of one model by its name or its folder."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from vitlab.device import choose
from vitlab.errors import OptionError
from vitlab.measure.speed import speed
from vitlab.models.config import ModelConfig, config_of
from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.models.fast.accelerate import ranking
from vitlab.models.fuse import fuse
from vitlab.models.model import Model
from vitlab.weights.load import load
from vitlab.weights.stated import FIELDS


def measure(
    name: str,
    *,
    timed: bool = False,
    fused: bool = False,
    engines: bool = False,
    batch: int = 1,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    seconds: float = 2.0,
    known: dict[str, Any] | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Measure a model's cost, part by part, and its speed if asked.

    Args:
        name: in the papers' notation, or a run folder or a saved model
        timed: build the model and time inference, as `speed` does
        fused: time the fused form
        engines: time every engine of `vitlab.accelerate`, the fastest first, as it does itself
        batch: images per forward pass
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32, or bf16 autocast
        seconds: how long a timed model repeats
        known: of a saved model, what `vitlab.load` takes: name, part, drop
        choices: fields of the model's configuration; of a saved model, image_size and what its
            file may not say (heads, gelu, …)

    Raises:
        OptionError: an unknown name or field, or a value that is not possible.
        WeightsError: a folder without a model.
    """
    config, model = opened(name, known, **choices)
    price = cost(config)
    figures: dict[str, Any] = {
        "model": config.name,
        "params": price.params,
        "macs": price.macs,
        "image_size": config.image_size,
        "parts": [{"part": p.name, "params": p.params, "macs": p.macs} for p in price.parts],
    }
    if timed or engines:
        model = model or build(replace(config, zero_head=True))
    if model and timed:
        model = fuse(model) if fused else model
        figures |= asdict(
            speed(model, batch=batch, device=device, precision=precision, seconds=seconds)
        )
    if model and engines:
        ranked = ranking(model, choose(device), batch=batch)
        figures["engines"] = [
            {"engine": e.engine, "precision": e.computes, "images_per_second": 1 / e.image}
            for e in ranked
        ]
    return figures


def opened(
    name: str, known: dict[str, Any] | None = None, **choices: Any
) -> tuple[ModelConfig, Model | None]:
    """Return the configuration that a name or a folder stands for, and the model of a folder.

    Args:
        name: in the papers' notation, or a run folder or a saved model
        known: of a saved model, what `vitlab.load` takes
        choices: as `measure` takes them

    Raises:
        OptionError: an unknown name or field, or a value that is not possible.
        WeightsError: a folder without a model.
    """
    saved = Path(name).exists()
    if saved and (others := sorted(set(choices) - {"image_size", *FIELDS})):
        raise OptionError(f"{others[0]} applies only to a model given by name, not to {name}")
    if known and not saved:
        raise OptionError(f"{min(known)} applies only to weights, and {name} names a model")
    model = load(name, **(known or {}), **choices) if saved else None
    return (model.config if model else config_of(name, **choices)), model
