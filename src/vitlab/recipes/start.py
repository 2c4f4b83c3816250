"""The options of a recipe that say which weights a run starts from, and which of them it trains."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Options, above, at_least, option, options_of, when
from vitlab.weights.file_options import Named

Tune = Literal["all", "attention", "ffn", "head", "last", "norms", "lora"]
LoRATargets = Literal["attention", "ffn", "all"]


@dataclass(frozen=True, kw_only=True)
class Start(Options):
    """The weights that a run starts from, and which of them it trains."""

    weights: str = option(
        "",
        "weights to start from: a run folder, a saved model, a weights file, or user/name on the "
        "Hugging Face Hub (empty: random ones)",
        flag="from",
        check="weights",
    )
    weights_name: str = option("", options_of(Named)["name"].help, only=when("weights"))
    weights_part: str = option("", options_of(Named)["part"].help, only=when("weights"))
    weights_drop: tuple[str, ...] = option((), options_of(Named)["drop"].help, only=when("weights"))
    tune: Tune = option(
        "all",
        "what to train of them, always with the classifier: everything; attention (Three things, "
        "section 4) or the FFNs, each with the positions; only the classifier (head); the last "
        "blocks and the final norm; the norms; or low-rank matrices beside dense layers (LoRA)",
    )
    last_blocks: int = option(
        2, "how many of the last blocks are trained", at_least(1), only=when("tune", "last")
    )
    head_start: Literal["zero", "probe", "random"] = option(
        "zero",
        "where a new classifier starts: zero (ViT paper, section 3.2); probe: fitted to the frozen "
        "features of the training images first (Kumar et al., 2022; numbers: by ridge regression); "
        "or random",
    )
    lora_rank: int = option(8, "rank of LoRA's matrices", at_least(1), only=when("tune", "lora"))
    lora_alpha: float = option(
        16.0,
        "LoRA's product is multiplied by this, divided by the rank",
        above(0),
        only=when("tune", "lora"),
    )
    lora_targets: LoRATargets = option(
        "attention", "the dense layers that get LoRA's matrices", only=when("tune", "lora")
    )
