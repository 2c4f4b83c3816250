"""The options of a recipe that concern learning without labels: the task, and what it predicts."""

from dataclasses import dataclass
from typing import Any, Literal

from vitlab.options import Only, Options, above, at_least, at_most, below, option, when

DINO = when("task", "dino")
LEJEPA = when("task", "lejepa")
CROPS = when("task", "dino", "lejepa")
DETECT = when("task", "detect")
REGRESS = when("task", "regress")
QUERIES = Only(
    "with task=detect or mask_queries", lambda own: own.task == "detect" or own.mask_queries > 0
)
MAE = when("task", "mae")
TOKENIZER = when("task", "tokenizer")
TaskName = Literal[
    "classify", "segment", "detect", "regress", "masked-patch", "tokenizer", "beit", "mae", "dino",
    "lejepa",
]  # fmt: skip
MASKED = ("masked-patch", "beit", "mae")


@dataclass(frozen=True, kw_only=True)
class Pretext(Options):
    """The task, and the options of tasks without labels, boxes and numbers."""

    task: TaskName = option(
        "classify",
        "classify: labels; segment: masks, from a run of `vitlab probe`; detect: boxes, by `vitlab "
        "train`; regress: numbers, the targets; masked-patch: colors or pixels of hidden patches "
        "(ViT paper, B.1.2); tokenizer: a discrete VAE, whose codes BEiT predicts; beit: codes of "
        "hidden patches; mae: pixels of hidden patches, from the visible ones alone; dino: the "
        "outputs of a momentum teacher for other crops; lejepa: one embedding for all crops of an "
        "image, and a Gaussian for all images",
    )
    mask_ratio: float = option(
        0.5, "share of the patches that is hidden", above(0), below(1), only=when("task", *MASKED)
    )
    target: Literal["mean-color", "downsized", "pixels"] = option(
        "mean-color",
        "prediction of a hidden patch: its mean color, 3 bits per channel; the patch at 4x4 "
        "pixels, each with 3 bits per channel; or its pixels, by their squared error",
        only=when("task", "masked-patch"),
    )
    tokenizer: str = option(
        "",
        "weights of the tokenizer: a run of --task tokenizer, a saved model, or OpenAI's DALL-E "
        "encoder",
        only=when("task", "beit"),
        check="weights",
    )
    min_block: int = option(
        0,
        "smallest masked block, in patches (0: 16, or a twelfth of a grid of less than 196)",
        at_least(0),
        only=when("task", "beit"),
    )
    decoder_width: int = option(512, "channels of the decoder's tokens", at_least(1), only=MAE)
    decoder_depth: int = option(8, "blocks of the decoder", at_least(1), only=MAE)
    decoder_heads: int = option(
        16, "attention heads of the decoder; they must divide its width", at_least(1),
        only=MAE,
    )  # fmt: skip
    normalize_pixels: bool = option(
        True, "predict each patch's pixels less their mean, by their deviation",
        only=MAE,
    )  # fmt: skip
    temperature: tuple[float, float] = option(
        (1.0, 0.0625),
        "temperature of the Gumbel-softmax over the codes at the start and at the end, a cosine "
        "between them",
        above(0),
        only=TOKENIZER,
    )
    kl_weight: float = option(
        0.0,
        "weight of the KL divergence of the codes from uniform ones, which grows from 0 over the "
        "first tenth of the run",
        at_least(0),
        only=TOKENIZER,
    )
    local_crops: int = option(
        8, "small crops per image beside the two large ones", at_least(0), only=CROPS
    )
    local_size: int = option(
        0, "side of the small crops in pixels (0: 3/7 of the image size, rounded to patches)",
        at_least(0), only=CROPS,
    )  # fmt: skip
    local_area: tuple[float, float] = option(
        (0.05, 0.4), "smallest and largest share of the image in a small crop", above(0),
        at_most(1), only=CROPS,
    )  # fmt: skip
    anchor: float = option(
        0.0,
        "weight of the Gram anchor, which keeps the similarities of an image's patches near those "
        "of the weights that the run starts from (DINOv3: 2)",
        at_least(0),
        only=CROPS,
    )
    prototypes: int = option(
        65_536, "outputs that student and teacher compare", at_least(2), only=DINO
    )
    head_width: int = option(2048, "hidden units of the projector", at_least(1), only=CROPS)
    bottleneck: int = option(
        256, "channels of the projector's last hidden layer, of length 1", at_least(1), only=DINO
    )
    momentum_teacher: float = option(
        0.996,
        "momentum of the teacher at the start; it grows to 1 by a cosine",
        at_least(0),
        below(1),
        only=DINO,
    )
    student_temperature: float = option(
        0.1, "temperature of the student's outputs", above(0), only=DINO
    )
    teacher_temperature: tuple[float, float] = option(
        (0.04, 0.04),
        "temperature of the teacher's outputs at the start, and after the first tenth of the run",
        above(0),
        only=DINO,
    )
    centering: Literal["mean", "sinkhorn"] = option(
        "mean",
        "against collapse of the teacher: subtract the mean of its outputs (DINO), or use all "
        "prototypes equally often, by Sinkhorn-Knopp (DINOv2)",
        only=DINO,
    )
    freeze_last: float = option(
        1.0, "epochs in which the projector's last layer is frozen", at_least(0), only=DINO
    )

    embedding: int = option(
        128, "channels of the embeddings that crops are compared by", at_least(1), only=LEJEPA
    )
    regularizer: Literal["sigreg", "visreg"] = option(
        "sigreg",
        "regularizer of embeddings toward an isotropic Gaussian: sigreg, by their characteristic "
        "function (LeJEPA), or visreg, by their scale, shape and center",
        only=LEJEPA,
    )
    regularizer_weight: float = option(
        0.02, "share of the regularizer in the loss", at_least(0), at_most(1), only=LEJEPA
    )
    slices: int = option(
        256, "directions in which each step compares embeddings with a Gaussian", at_least(1),
        only=LEJEPA,
    )  # fmt: skip

    object_queries: int = option(
        100, "objects that are found in an image, at most (DETR: 100)", at_least(1), only=DETECT
    )
    query_blocks: int = option(
        3, "last blocks, before which the queries join the patches (EoMT: 3 of ViT-S and -B)",
        at_least(1), only=QUERIES,
    )  # fmt: skip
    mask_queries: int = option(
        0,
        "learned queries, more than an image has classes, in place of the linear layer: each a "
        "class and a mask (0: the layer; EoMT: 100)",
        at_least(0),
        only=when("task", "segment"),
    )

    targets: str = option(
        "", "columns of the numbers that are learned, such as age,height", only=REGRESS
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the numbers that are learned."""
        names = (each.strip() for each in self.targets.split(","))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def annotated(self) -> bool:
        """Whether what is learned is within images, from boxes or masks, or numbers of images."""
        return self.task in ("detect", "regress", "segment")

    @property
    def labeled(self) -> bool:
        """Whether labels are learned from, of images or of objects in them."""
        return self.annotated or not self.unlabeled

    @property
    def unlabeled(self) -> bool:
        """Whether nothing is learned from labels of images: the tasks of `pretext_tasks`."""
        return self.task != "classify"


def named_task(given: dict[str, Any]) -> dict[str, Any]:
    """Return options by name, with the task that targets mean."""
    return {"task": "regress"} | given if given.get("targets") else given
