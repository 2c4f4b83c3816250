"""The public names: each is a line here and nowhere else, under the version that it came with.

Type checkers and editors read this file; `__init__.py` beside it loads a name from its place when
it is first used; `docs/generate/api_pages.py` makes the reference of it.
"""

__all__: list[str]
__version__: str

# since 0.1
from vitlab import adapters as adapters
from vitlab import errors as errors
from vitlab import inspect as inspect
from vitlab import measure as measure
from vitlab import objectives as objectives
from vitlab import serve as serve
from vitlab.client.client import AsyncClient as AsyncClient
from vitlab.client.client import Client as Client
from vitlab.data.duplicates.finding import duplicates as duplicates
from vitlab.data.opened_data import OpenedData as OpenedData
from vitlab.data.preprocess import preprocess as preprocess
from vitlab.data.settings import Columns as Columns
from vitlab.errors import UserError as UserError
from vitlab.evaluation.calibration import calibrate as calibrate
from vitlab.evaluation.calibration import choose_thresholds as choose_thresholds
from vitlab.evaluation.classification import classify as classify
from vitlab.evaluation.embedding import embed as embed
from vitlab.evaluation.evaluation import evaluate as evaluate
from vitlab.evaluation.inductive_bias import inductive_bias as inductive_bias
from vitlab.evaluation.probes.few_shot import fewshot as fewshot
from vitlab.evaluation.search import search as search
from vitlab.experiments.repeats import cross_validate as cross_validate
from vitlab.experiments.repeats import repeat as repeat
from vitlab.experiments.sweep import sweep as sweep
from vitlab.graphs.exporting import export as export
from vitlab.models.config import ResNetConfig as ResNetConfig
from vitlab.models.config import ViTConfig as ViTConfig
from vitlab.models.create import create as create
from vitlab.models.fast.accelerate import accelerate as accelerate
from vitlab.models.fuse import fuse as fuse
from vitlab.models.resnets.resnet import ResNet as ResNet
from vitlab.models.stems.tubelet import over_frames as over_frames
from vitlab.models.vit import VisionTransformer as VisionTransformer
from vitlab.recipes.named import recipe as recipe
from vitlab.recipes.recipe import Host as Host
from vitlab.recipes.recipe import Recipe as Recipe
from vitlab.report.comparing.compare_runs import compare as compare
from vitlab.run_reports.train import train as train
from vitlab.studies.study import study as study
from vitlab.training.outcome import Run as Run
from vitlab.transfer.finetuning import finetune as finetune
from vitlab.transfer.linear_probe import probe as probe
from vitlab.transfer.multitask import MultiTask as MultiTask
from vitlab.transfer.soup import soup as soup
from vitlab.weights.deltas import Delta as Delta
from vitlab.weights.deltas import delta as delta
from vitlab.weights.load import load as load
from vitlab.weights.publish import push as push
from vitlab.weights.save import save as save
