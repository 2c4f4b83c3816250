"""`vitlab push`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WeightsOptions
from vitlab.options import argument, option
from vitlab.runs.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Push(WeightsOptions):
    """A model and its place on the Hub."""

    repository: str = argument("user/name on the Hub")
    private: bool = option(False, "make a new repository private")
    license: str | None = option(
        None, "license of the weights, such as apache-2.0 (default: that of their source, if known)"
    )


def run(options: Push) -> dict[str, Any]:
    """Load and upload."""
    from vitlab.weights.publish import push

    model, how = options.load(), options.values("private license")
    metrics = _figures(options.weights, model)
    url = push(model, options.repository, metrics=metrics, **how)
    return {"model": model.config.name, "url": url}


def _figures(weights: str, model: Any) -> dict[str, Any] | None:
    """Return the test figures of a run, without what has changed since; None if there are none."""
    from vitlab.evaluation.metrics import METRICS

    folder = RunFolder(weights)
    result = folder.result() if folder.started else None
    if result is None or "task" in result:  # what learns without labels is not tested
        return None
    now = {"temperature": model.temperature != 1, "thresholds": "thresholds" in model.provenance}
    changed = {each.name for each in METRICS.values() if now.get(each.moved_by)}
    kept = {key: value for key, value in result.items() if key not in changed}
    return kept | {"data": folder.recipe.data.data, "split": "test"}


def show(result: dict[str, Any]) -> None:
    """Print the address."""
    print(result["url"])


COMMAND = Command(run, show=show)
