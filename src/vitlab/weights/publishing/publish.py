"""A model to the Hugging Face Hub, with its card."""

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vitlab.weights.assembly import unwrapped
from vitlab.weights.hub import CARD, publish, repository
from vitlab.weights.publishing.card import KEPT, card
from vitlab.weights.save import save


def push(
    model: nn.Module,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str | None = None,
    license: str | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> str:
    """Publish a model on the Hub with a card that describes it; `vitlab.load(name)` loads it.

    Args:
        model: any that is not fused
        name: `user/name`; created if it does not exist, else a new commit replaces the model
        private: visible only to you, if it is created
        token: with the right to write; None for the one that `hf auth login` stored
        message: of the commit
        license: of the weights, for example `apache-2.0`; None for the one in its provenance
        metrics: the result of `vitlab.evaluate`, or a run's; None for those in its provenance

    Returns:
        The URL of its page.

    Raises:
        WeightsError: the model is fused.
        HubError: an invalid name, or the Hub refuses or cannot be reached.
    """
    repo, model = repository(name), unwrapped(model)
    published = copy.copy(model)  # the same tensors under a provenance of its own
    published.provenance = _provenance(model.provenance, license, metrics)
    with tempfile.TemporaryDirectory(prefix="vitlab-") as scratch:
        folder = save(published, Path(scratch) / "model")
        (folder / CARD).write_text(card(published, repo), encoding="utf-8")
        text = message or f"Upload {model.config.name}"
        return publish(folder, repo, text, private=private, token=token)


def _provenance(
    before: dict[str, Any], license: str | None, metrics: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A provenance with the arguments of `push`; the license of the source weights stays."""
    about = dict(before)
    if license is not None:
        about["license"] = license
        if before.get("license") not in (None, license):
            about["source_license"] = before["license"]
    if metrics is not None:
        about["metrics"] = {key: metrics[key] for key in KEPT if metrics.get(key) is not None}
    return about
