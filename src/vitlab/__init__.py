"""ViTLab, the Vision Transformer workbench. The public names, each loaded when first used."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab import adapters as adapters
    from vitlab import errors as errors
    from vitlab import inspect as inspect
    from vitlab import measure as measure
    from vitlab import objectives as objectives
    from vitlab import serve as serve
    from vitlab.client.async_client import AsyncClient as AsyncClient
    from vitlab.client.client import Client as Client
    from vitlab.data.duplicates.finding import duplicates as duplicates
    from vitlab.data.learning import OpenedData as OpenedData
    from vitlab.data.preprocess import preprocess as preprocess
    from vitlab.data.settings import Columns as Columns
    from vitlab.errors import UserError as UserError
    from vitlab.evaluation.calibration import calibrate as calibrate
    from vitlab.evaluation.classification import classify as classify
    from vitlab.evaluation.embedding import embed as embed
    from vitlab.evaluation.evaluation import evaluate as evaluate
    from vitlab.evaluation.inductive_bias import inductive_bias as inductive_bias
    from vitlab.evaluation.probes.few_shot import fewshot as fewshot
    from vitlab.evaluation.search import search as search
    from vitlab.evaluation.thresholds import choose_thresholds as choose_thresholds
    from vitlab.experiments.folds import cross_validate as cross_validate
    from vitlab.experiments.seeds import repeat as repeat
    from vitlab.experiments.sweep import sweep as sweep
    from vitlab.graphs.exporting import export as export
    from vitlab.models.config import ResNetConfig as ResNetConfig
    from vitlab.models.config import ViTConfig as ViTConfig
    from vitlab.models.create import create as create
    from vitlab.models.fast.accelerate import accelerate as accelerate
    from vitlab.models.fuse import fuse as fuse
    from vitlab.models.resnets.resnet import ResNet as ResNet
    from vitlab.models.vit import VisionTransformer as VisionTransformer
    from vitlab.recipes.named import recipe as recipe
    from vitlab.recipes.recipe import Host as Host
    from vitlab.recipes.recipe import Recipe as Recipe
    from vitlab.report.comparing.compare_runs import compare as compare
    from vitlab.studies.study_by_name import study as study
    from vitlab.training.ending import Run as Run
    from vitlab.training.run import train as train
    from vitlab.transfer.finetuning import finetune as finetune
    from vitlab.transfer.linear_probe import probe as probe
    from vitlab.transfer.mixing import soup as soup
    from vitlab.transfer.multitask import MultiTask as MultiTask
    from vitlab.weights.deltas import Delta as Delta
    from vitlab.weights.deltas import delta as delta
    from vitlab.weights.load import load as load
    from vitlab.weights.publish import push as push
    from vitlab.weights.save import save as save

if sys.platform == "win32":  # it has no fcntl and no resource, and forks no process
    raise ImportError("vitlab needs Linux or macOS: on Windows use WSL 2")

# where each name comes from; "" for a module of its own
_HOMES = {
    "AsyncClient": "vitlab.client.async_client",
    "Client": "vitlab.client.client",
    "Columns": "vitlab.data.settings",
    "Delta": "vitlab.weights.deltas",
    "Host": "vitlab.recipes.recipe",
    "MultiTask": "vitlab.transfer.multitask",
    "OpenedData": "vitlab.data.learning",
    "Recipe": "vitlab.recipes.recipe",
    "Run": "vitlab.training.ending",
    "UserError": "vitlab.errors",
    "ViTConfig": "vitlab.models.config",
    "VisionTransformer": "vitlab.models.vit",
    "accelerate": "vitlab.models.fast.accelerate",
    "adapters": "",
    "calibrate": "vitlab.evaluation.calibration",
    "choose_thresholds": "vitlab.evaluation.thresholds",
    "classify": "vitlab.evaluation.classification",
    "compare": "vitlab.report.comparing.compare_runs",
    "create": "vitlab.models.create",
    "fuse": "vitlab.models.fuse",
    "ResNet": "vitlab.models.resnets.resnet",
    "ResNetConfig": "vitlab.models.config",
    "cross_validate": "vitlab.experiments.folds",
    "delta": "vitlab.weights.deltas",
    "embed": "vitlab.evaluation.embedding",
    "duplicates": "vitlab.data.duplicates.finding",
    "errors": "",
    "evaluate": "vitlab.evaluation.evaluation",
    "export": "vitlab.graphs.exporting",
    "fewshot": "vitlab.evaluation.probes.few_shot",
    "finetune": "vitlab.transfer.finetuning",
    "inductive_bias": "vitlab.evaluation.inductive_bias",
    "inspect": "",
    "load": "vitlab.weights.load",
    "measure": "",
    "objectives": "",
    "probe": "vitlab.transfer.linear_probe",
    "preprocess": "vitlab.data.preprocess",
    "push": "vitlab.weights.publish",
    "recipe": "vitlab.recipes.named",
    "repeat": "vitlab.experiments.seeds",
    "save": "vitlab.weights.save",
    "search": "vitlab.evaluation.search",
    "serve": "",
    "soup": "vitlab.transfer.mixing",
    "study": "vitlab.studies.study_by_name",
    "sweep": "vitlab.experiments.sweep",
    "train": "vitlab.training.run",
}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PyTorch alone takes seconds)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab' has no attribute {name!r}")
    home = _HOMES[name]
    value = (
        getattr(importlib.import_module(home), name)
        if home
        else importlib.import_module(f"vitlab.{name}")
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
