"""The pretext tasks by name."""

from vitlab.objectives.beit import BEiT
from vitlab.objectives.dino.self_distillation import SelfDistillation
from vitlab.objectives.masked_patch import MaskedPatch
from vitlab.objectives.pretext_task import PretextTask
from vitlab.objectives.tokenize import Tokenize

TASKS: dict[str, type[PretextTask]] = {
    "beit": BEiT,
    "dino": SelfDistillation,
    "masked-patch": MaskedPatch,
    "tokenizer": Tokenize,
}
"""By the recipe's `task`; `classify` is not among them, for it needs labels."""
