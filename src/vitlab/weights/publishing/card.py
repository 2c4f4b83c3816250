"""The card of a model on the Hugging Face Hub: its shape, cost and origin."""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from vitlab.models.config import ModelConfig, ResNetConfig, TokenizerConfig, ViTConfig
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.weights.hub import is_hub_name, repository

if TYPE_CHECKING:  # it takes time to import
    from huggingface_hub import EvalResult

VIT = "An Image is Worth 16x16 Words (arXiv 2010.11929)"
THREE = "Three things everyone should know about Vision Transformers (arXiv 2203.09795)"
# licenses that the Hub has names for
LICENSES = """apache-2.0 mit bsd-2-clause bsd-3-clause bsd gpl-3.0 agpl-3.0 lgpl-3.0 mpl-2.0
cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0 cc-by-nc-nd-4.0 cc-by-nd-4.0
openrail creativeml-openrail-m unlicense wtfpl isc ms-pl artistic-2.0 other unknown"""
TAGS = {"vit": "vision-transformer", "resnet": "resnet"}
FIGURES = {
    "accuracy": "accuracy",
    "top5": "top-5 accuracy",
    "map": "mean average precision",
    "balanced_accuracy": "balanced accuracy",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "mcc": "Matthews correlation coefficient",
    "auroc": "area under the ROC curve",
    "nll": "negative log-likelihood, nats",
    "bce": "binary cross-entropy, nats",
    "ece": "expected calibration error",
    "images": "images",
}
KEPT = (*FIGURES, "split", "data")
"""Of the result of an evaluation, what a saved model says."""

HUB_METRICS = {  # ids of https://huggingface.co/metrics
    "accuracy": "accuracy",
    "map": "mean_average_precision",
    "micro_f1": "f1",
    "macro_f1": "f1",
    "mcc": "matthews_correlation",
    "auroc": "roc_auc",
}


def card(model: Model, name: str) -> str:
    """Return a model card: YAML front matter for the Hub, then Markdown.

    Args:
        model: its provenance may contain data, recipe, epochs, seed, source, commit, base,
            base_commit, tune, license, source_license, metrics
        name: `user/name`, for the usage snippet
    """
    parts = [
        f"# {_text(name.split('/')[-1])}",
        _introduction(model.config),
        _table([("", ""), *_facts(model)]),
        "## Use",
        _usage(model, name),
        *_section("Results", _results(model.provenance)),
        *_section("Training", _training(model.provenance)),
        "## License",
        _license_text(model.provenance),
    ]
    return f"---\n{_front(model, name)}\n---\n" + "\n\n".join(parts) + "\n"


def classifies(model: Model) -> bool:
    """Return whether a model has a classifier, other than the zero one of fine-tuning."""
    if not model.config.classes or model.config.answers > 1:
        return False
    state = model.state_dict()
    return any(bool(state[name].any()) for name in state if name.endswith("classify.weight"))


def _front(model: Model, name: str) -> str:
    """The metadata, written by the Hub's own library so that every value is escaped."""
    from huggingface_hub import ModelCardData

    about = model.provenance
    license = about.get("license")
    named = str(license).lower() in LICENSES.split()
    source = about.get("source") if about.get("commit") else None
    if about.get("base_commit"):  # else it may be a folder that only looks like a name on the Hub
        source = about.get("base")
    data, results = about.get("data"), _eval_results(about)
    return ModelCardData(
        library_name="vitlab",
        pipeline_tag="image-classification" if classifies(model) else "image-feature-extraction",
        license=None if license is None else str(license).lower() if named else "other",
        license_name=None if license is None or named else _slug(str(license)),
        tags=["vitlab", TAGS[model.config.kind], *_tag(model.config.name)],
        datasets=[str(data)] if _on_hub(data) else None,
        base_model=repository(str(source)) if _on_hub(source) else None,
        metrics=list(dict.fromkeys(HUB_METRICS[key] for key in _measured(about))) or None,
        model_name=name.split("/")[-1] if results else None,
        eval_results=results or None,
    ).to_yaml()


def _measured(about: dict[str, Any], names: Mapping[str, str] = HUB_METRICS) -> dict[str, Any]:
    """Return the figures that these names are for, the Hub's if none are given."""
    metrics = about.get("metrics")
    given = metrics if isinstance(metrics, dict) else {}
    known = {key: given[key] for key in names if isinstance(given.get(key), int | float)}
    return {key: value for key, value in known.items() if math.isfinite(value)}


def _eval_results(about: dict[str, Any]) -> "list[EvalResult]":
    """Return the figures as the Hub shows them beside a model, if their data has a name."""
    from huggingface_hub import EvalResult

    found = _measured(about)
    data = about["metrics"].get("data", about.get("data")) if found else None
    if not data:
        return []
    short = str(_short(data))
    return [
        EvalResult(
            task_type="image-classification",
            task_name="Image classification",
            dataset_type=str(data) if _on_hub(data) else _slug(short),
            dataset_name=short,
            dataset_split=str(about["metrics"].get("split", "test")),
            metric_type=HUB_METRICS[key],
            metric_name=FIGURES[key],
            metric_value=value,
        )
        for key, value in found.items()
    ]


def _introduction(config: ModelConfig) -> str:
    kind = "a Vision Transformer" if isinstance(config, ViTConfig) else "a ResNet"
    if isinstance(config, TokenizerConfig):
        return f"**{_text(config.name)}**, an image tokenizer of {config.codes:,} codes."
    if isinstance(config, ViTConfig) and config.stem == "resnet":
        kind = "a Vision Transformer on top of a ResNet"
    three = isinstance(config, ViTConfig) and (config.branches > 1 or config.stem == "hmlp")
    return f"**{_text(config.name)}**, {kind}, in the notation of *{THREE if three else VIT}*."


def _facts(model: Model) -> list[tuple[str, str]]:
    config, price = model.config, cost(model)
    rows, columns = config.size
    facts = [
        ("parameters", f"{price.params:,}"),
        ("multiply-adds per image", f"{price.macs:,}"),
        ("images", f"{rows}x{columns} pixels, {config.channels} channels"),
        ("resized", f"{config.interpolation}; the central {config.crop:.4g} of each side is used"),
        ("normalized", f"(x - mean) / std of x in [0, 1]; {_numbers(config)}"),
    ]
    if model.temperature != 1:
        facts.append(("temperature", f"{model.temperature:.4g}, which divides the class scores"))
    if "thresholds" in model.provenance:
        low, high = min(model.thresholds), max(model.thresholds)
        facts.append(("thresholds", f"{low:.3g}" + (f" to {high:.3g}" if high > low else "")))
    if isinstance(config, ResNetConfig):
        facts.append(("units per stage", ", ".join(map(str, config.stages))))
    if classifies(model):
        shown = ", ".join(map(_text, config.labels[:20])) + (", …" * (len(config.labels) > 20))
        facts.append(("classes", f"{config.classes:,}" + (f": {shown}" if shown else "")))
    return facts


def _numbers(config: ModelConfig) -> str:
    mean, std = (", ".join(f"{n:g}" for n in each) for each in (config.mean, config.std))
    return f"mean {mean}; std {std}"


def _usage(model: Model, name: str) -> str:
    lines = ["import vitlab", "", f'model = vitlab.load("{name}")']
    if classifies(model):
        lines.append('vitlab.classify(model, ["photo.jpg"], top=3)')
    else:
        lines.append("features = model.features(images)  # normalized (B, channels, H, W)")
    return "\n".join(["```python", *lines, "```"])


def _results(about: dict[str, Any]) -> list[tuple[str, str]]:
    found = _measured(about, FIGURES).items()
    return [(FIGURES[k], f"{v:,}" if isinstance(v, int) else f"{v:.4f}") for k, v in found]


def _training(about: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the weights come from; of a path on somebody's disk only the last name."""
    rows = [
        (key, _text(_short(about[key]) if key in ("data", "source", "base") else about[key]))
        for key in ("source", "commit", "base", "tune", "data", "recipe", "epochs", "seed")
        if about.get(key) not in (None, "")
    ]
    words = {"source": "started from", "base": "started from", "tune": "trained parameters"}
    return [(words.get(key, key), value) for key, value in rows]


def _license_text(about: dict[str, Any]) -> str:
    license = about.get("license")
    if license is None:
        return "Not stated."
    before = about.get("source_license")
    return f"{_text(license)}." + (f" Initial weights: {_text(before)}." * bool(before))


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return [f"## {title}", _table([("", ""), *rows])] if rows else []


def _table(rows: list[tuple[str, str]]) -> str:
    lines = [f"| {left} | {right} |" for left, right in rows]
    return "\n".join([lines[0], "| --- | --- |", *lines[1:]])


def _on_hub(value: object) -> bool:
    return isinstance(value, str) and is_hub_name(value)


def _short(value: object) -> object:
    return PurePath(str(value)).name if PurePath(str(value)).is_absolute() else value


def _tag(name: str) -> list[str]:
    """The name of a model as a tag, unless it spells out every size."""
    return [] if "(" in name else [name]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "other"


def _text(value: object) -> str:
    """Anything as one line of plain Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(str(value).split()))
