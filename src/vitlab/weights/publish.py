"""A model to the Hugging Face Hub, with a card: its shape, cost and origin."""

import copy
import math
import re
from collections.abc import Iterable

from torch import nn

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.files import SEEN, vanishing_folder
from vitlab.hub import unheard
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.progress import named_if_slow
from vitlab.public_calls import public
from vitlab.recorded_paths import strip_places
from vitlab.weights.formats.records import rules
from vitlab.weights.hub import CARD, check_hub, is_hub_name, refused, repository
from vitlab.weights.save import save
from vitlab.weights.sharded import INDEX, UNLIKE, Fields
from vitlab.weights.state import unwrapped

VIT = "An Image is Worth 16x16 Words (arXiv 2010.11929)"
THREE = "Three things everyone should know about Vision Transformers (arXiv 2203.09795)"
# licenses that the Hub has names for
LICENSES = """apache-2.0 mit bsd-2-clause bsd-3-clause bsd gpl-3.0 agpl-3.0 lgpl-3.0 mpl-2.0
cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0 cc-by-nc-nd-4.0 cc-by-nd-4.0
openrail creativeml-openrail-m unlicense wtfpl isc ms-pl artistic-2.0 other unknown"""
TAGS = {"vit": "vision-transformer"}  # of others, the kind itself
# Keys of a provenance, and what the card calls them.
TRAINING = rules("""
    source  started from
    commit  commit
    base    started from
    tune    trained parameters
    data    data
    recipe  recipe
    epochs  epochs
    seed    seed
""")


@public(model=nn.Module, name=str)
def push(
    model: nn.Module,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str | None = None,
    license: str | None = None,
    metrics: Fields | None = None,
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
    from huggingface_hub import HfApi

    repo = repository(name)
    model = unwrapped(model)
    published = copy.copy(model)  # the same tensors under a provenance of its own
    published.provenance = about = dict(model.provenance)
    if license is not None and about.get("license") not in (None, license):
        about["source_license"] = about["license"]
    about |= {} if license is None else {"license": license}
    if metrics is not None:
        kept = (*METRICS, "images", "split", "data")
        about["metrics"] = {key: metrics[key] for key in kept if metrics.get(key) is not None}
    with vanishing_folder() as scratch:
        folder = save(published, scratch / "model")
        (folder / CARD).write_text(card(published, repo), encoding="utf-8")
        try:
            check_hub(repo, f"push to {repo}")
            api = HfApi(token=token)
            with unheard(), named_if_slow(f"uploading to {repo}"):
                url = api.create_repo(repo, private=private, exist_ok=True)
                api.upload_folder(
                    repo_id=repo,
                    folder_path=folder,
                    commit_message=message or f"Upload {model.config.name}",
                    delete_patterns=["model*.safetensors", INDEX, SEEN, UNLIKE],  # of an older one
                )
        except Exception as error:  # whatever the libraries below the Hub's may raise
            raise refused(error, f"push to {repo}") from error
    return str(url)


def card(model: Model, name: str) -> str:
    """Return a model card: YAML front matter for the Hub, then Markdown.

    Args:
        model: its provenance may contain data, recipe, epochs, seed, source, commit, base,
            base_commit, tune, license, source_license, metrics
        name: `user/name`, for the usage snippet
    """
    about = strip_places(model.provenance)
    classifies = _classifies(model)
    found = _measured(about)
    results = [(each.word, f"{value:.4f}") for each, value in found]
    if isinstance(images := (about.get("metrics") or {}).get("images"), int):
        results.append(("images", f"{images:,}"))
    training = [
        (label, _text(about[key]))
        for key, label in TRAINING.items()
        if about.get(key) not in (None, "")
    ]
    use = "features = model.features(images)  # normalized (B, channels, H, W)"
    if classifies:
        use = 'vitlab.classify(model, ["photo.jpg"], top=3)'
    license, before = about.get("license"), about.get("source_license")
    stated = "Not stated." if license is None else f"{_text(license)}."
    initial = f" Initial weights: {_text(before)}." if license is not None and before else ""
    parts = [
        f"---\n{_front(model, name, classifies)}\n---\n# {_text(name.split('/')[-1])}",
        _introduction(model.config),
        _table("", _facts(model, classifies).items()),
        f'## Use\n\n```python\nimport vitlab\n\nmodel = vitlab.load("{name}")\n{use}\n```',
        _table("## Results\n\n", results),
        _table("## Training\n\n", training),
        f"## License\n\n{stated}{initial}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _classifies(model: Model) -> bool:
    """Whether a model has a classifier, other than the zero one of fine-tuning."""
    if not model.config.classes or model.config.answers > 1:
        return False
    state = model.state_dict()
    return any(bool(state[name].any()) for name in state if name.endswith("classify.weight"))


def _front(model: Model, name: str, classifies: bool) -> str:
    """The metadata, written by the Hub's own library so that every value is escaped."""
    from huggingface_hub import EvalResult, ModelCardData

    about = strip_places(model.provenance)
    config = model.config
    license = about.get("license")
    data = str(about.get("data"))
    named = str(license).lower() in LICENSES.split()
    source = str(about.get("source")) if about.get("commit") else ""
    if about.get("base_commit"):  # else it may be a folder that only looks like a name on the Hub
        source = str(about.get("base"))
    found = [(each, value) for each, value in _measured(about) if each.hub]
    measured = about["metrics"].get("data", about.get("data")) if found else None
    results = [
        EvalResult(
            task_type="image-classification",
            task_name="Image classification",
            dataset_type=str(measured) if is_hub_name(measured) else _slug(measured),
            dataset_name=str(measured),
            dataset_split=str(about["metrics"].get("split", "test")),
            metric_type=each.hub,
            metric_name=each.word,
            metric_value=value,
        )
        for each, value in found
        if measured
    ]
    return ModelCardData(
        library_name="vitlab",
        pipeline_tag="image-classification" if classifies else "image-feature-extraction",
        license=None if license is None else str(license).lower() if named else "other",
        license_name=None if license is None or named else _slug(license),
        # a name that spells out every size is no tag
        tags=[
            "vitlab",
            TAGS.get(config.kind, config.kind),
            *([] if "(" in config.name else [config.name]),
        ],
        datasets=[data] if is_hub_name(data) else None,
        base_model=repository(source) if is_hub_name(source) else None,
        metrics=list(dict.fromkeys(each.hub for each, _ in found)) or None,
        model_name=name.split("/")[-1] if results else None,
        eval_results=results or None,
    ).to_yaml()


def _measured(about: Fields) -> list[tuple[Metric, float]]:
    """The figures of the table of metrics, if they are finite numbers."""
    given = about["metrics"] if isinstance(about.get("metrics"), dict) else {}
    found = ((each, given.get(name)) for name, each in METRICS.items())
    return [(e, float(n)) for e, n in found if isinstance(n, int | float) and math.isfinite(n)]


def _introduction(config: ModelConfig) -> str:
    name = _text(config.name)
    paper = VIT
    if isinstance(config, TokenizerConfig):
        return f"**{name}**, an image tokenizer of {config.codes:,} codes."
    kind = "a ResNet"
    if isinstance(config, ViTConfig):
        on_top = " on top of a ResNet" if config.stem == "resnet" else ""
        kind = f"a Vision Transformer{on_top}"
        if config.branches > 1 or config.stem == "hmlp":
            paper = THREE
    return f"**{name}**, {kind}, in the notation of *{paper}*."


def _facts(model: Model, classifies: bool) -> dict[str, str]:
    config, price, labels = model.config, cost(model), model.config.labels
    rows, columns = config.size
    mean, std = (", ".join(f"{n:g}" for n in each) for each in (config.mean, config.std))
    facts = {
        "parameters": f"{price.params:,}",
        "multiply-adds per image": f"{price.macs:,}",
        "images": f"{rows}x{columns} pixels, {config.channels} channels",
        "resized": f"{config.interpolation}; the central {config.crop:.4g} of each side is used",
        "normalized": f"(x - mean) / std of x in [0, 1]; mean {mean}; std {std}",
    }
    if classifies:
        shown = [*map(_text, labels[:20]), *["…"] * (len(labels) > 20)]
        facts["classes"] = f"{config.classes:,}" + (f": {', '.join(shown)}" if shown else "")
    return facts


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table under its title; nothing without rows."""
    lines = "\n".join(f"| {left} | {right} |" for left, right in rows)
    return f"{title}|  |  |\n| --- | --- |\n{lines}" if lines else ""


def _slug(text: object) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", str(text).lower()).strip("-") or "other"


def _text(value: object) -> str:
    """Anything as one line of plain Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(str(value).split()))
