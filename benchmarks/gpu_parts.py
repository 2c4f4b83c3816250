"""What `gpu.py` measures, in order of worth, and the goals that are read off the tables."""

from collections.abc import Callable
from dataclasses import dataclass

Row = dict[str, str]  # the cells of a table's row, by the titles of its columns


@dataclass(frozen=True)
class Part:
    """One measurement, made by a command in a process of its own.

    Attributes:
        name: also of its file
        title: heading in the report
        words: of its command, with FOLDER for where files go; the first is a script of this folder,
            or a module to be run with `-m`
        dry: the same at tiny sizes, for a CPU
        limit: seconds after which it is stopped; rows printed until then are kept
        asked: made only if it is named
    """

    name: str
    title: str
    words: str
    dry: str
    limit: int
    asked: bool = False


PARTS = (
    Part(
        "tests",
        "Tests on the GPU",
        "pytest tests/on_gpu -m gpu -q -W default -p no:cacheprovider --confcutdir=tests/on_gpu",
        "pytest tests/on_gpu -m gpu -q -W default -p no:cacheprovider --confcutdir=tests/on_gpu",
        100,
    ),
    Part(
        "rates",
        "What the device computes and moves",
        "gpu_rates.py",
        "gpu_rates.py --side 128 --megabytes 8 --rounds 2",
        40,
    ),
    Part(
        "inference",
        "ViT-B/16, inference",
        "gpu_inference.py --models B/16 --batches 64 128 256 512 --compiled-batches 128 256",
        "gpu_inference.py --models Ti2/16 --pixels 32 --batches 1 2 --compiled-batches 2"
        " --rounds 1",
        120,
    ),
    Part(
        "train",
        "ViT-B/16, a training step",
        "train.py --models B/16:224:256 --precisions bf16 --device cuda --rounds 7",
        "train.py --models Ti2/16:32:2 --precisions bf16 --rounds 1 --no-memory",
        70,
    ),
    Part(
        "train-compiled",
        "ViT-B/16, a compiled training step",
        "train.py --models B/16:224:256 --precisions bf16 --device cuda --rounds 7 --compile"
        " --no-memory --forms ours 'ours bf16-pure' timm",
        "train.py --models Ti2/16:32:2 --precisions bf16 --rounds 1 --no-memory --compile"
        " --forms ours 'ours bf16-pure' timm",
        150,
    ),
    Part(
        "drop-path",
        "ViT-L/16 with stochastic depth",
        "drop_path.py --model ViT-L/16 --batch 64 --rates 0 0.4 --precision bf16 --peer",
        "drop_path.py --model ViT-Ti2/16 --pixels 32 --batch 4 --rates 0 0.4 --precision bf16"
        " --peer --rounds 1",
        60,
    ),
    Part(
        "parallel",
        "Parallel branches, launched from Python",
        "parallel.py --models S B --batches 1 4 16 64 --precision bf16 --device cuda",
        "parallel.py --models S B --depth 2 --batches 1 --precision bf16 --rounds 1 --repeats 1",
        50,
    ),
    Part(
        "parallel-graphs",
        "Parallel branches as CUDA graphs",
        "parallel.py --models S B --batches 1 2 4 8 16 32 64 --precision bf16 --device cuda"
        " --graphs",
        "parallel.py --models S B --depth 2 --batches 1 --precision bf16 --rounds 1 --repeats 1"
        " --graphs",
        60,
    ),
    Part(
        "augment",
        "Augmentation of each recipe beside a ViT-S/16 step",
        "augment.py --recipes --batches 256 --alone --device cuda --precision bf16",
        "augment.py --recipes --batches 2 --alone --step-batch 1 --model ViT-Ti1/16 --rounds 1",
        50,
    ),
    Part(
        "latency",
        "ViT-B/16, one image as a CUDA graph",
        "gpu_inference.py --models B/16 --batches 1 8 --compiled-batches 1 --graphs",
        "gpu_inference.py --models Ti1/16 --pixels 32 --batches 1 --compiled-batches 1 --graphs"
        " --rounds 1",
        60,
    ),
    Part(
        "profiles",
        "What limits them",
        "gpu_profile.py --traces FOLDER/traces",
        "gpu_profile.py --traces FOLDER/traces --tiny",
        80,
    ),
    Part(
        "attention",
        "Attention by each back-end of PyTorch",
        "gpu_attention.py",
        "gpu_attention.py --shapes 1x2x5x8 --rounds 1",
        30,
    ),
    Part(
        "sizes",
        "ViT-L/16, S/16 and Ti/16, inference",
        "gpu_inference.py --models L/16 S/16 Ti/16 --batches 128 256 --compiled-batches 256",
        "gpu_inference.py --models Ti1/16 --pixels 32 --batches 1 --rounds 1 --compiled-batches",
        110,
    ),
    Part(
        "native-aspect",
        "Images of native aspect ratios",
        "naflex.py --model ViT-B/16 --batch 128 --precision bf16 --device cuda",
        "naflex.py --model ViT-Ti1/16 --batch 2 --tokens 16 --rounds 1",
        30,
    ),
    Part(
        "pretext-steps",
        "A step of each task without labels",
        "pretext_steps.py --models B/16:224:128 --precision bf16 --device cuda --threads 8"
        " --rounds 5",
        "pretext_steps.py --models Ti1/16:64:2 --rows mae dino --rounds 1",
        60,
    ),
    Part(
        "tuning",
        "Fine-tuning a part",
        "tune.py --models B/16:224:64 --libraries ours timm --modes all attention ffn norms head"
        " --precision bf16 --device cuda",
        "tune.py --models Ti1/16:32:2 --libraries ours timm --modes all head --rounds 1 --no-peak",
        50,
    ),
    Part(
        "growth",
        "Growth with tokens and depth",
        "growth.py --model S/16 --precision bf16 --tokens 65536 --batch 64 --device cuda",
        "growth.py --model Ti1/16 --sizes 32 64 --depths 1 2 --batch 1 --tokens 16 --rounds 1",
        60,
    ),
    Part("cifar10", "CIFAR-10 from scratch", "cifar10.py DATA", "cifar10.py --help", 660, True),
)


@dataclass(frozen=True)
class Goal:
    """A figure that is read off a table, and what it should be.

    Attributes:
        text: what it is
        part: whose tables
        read: from all rows to the figure; None if a row is missing
        least: the goal, if more is better
        most: the goal, if less is better
    """

    text: str
    part: str
    read: Callable[[list[Row]], float | None]
    least: float | None = None
    most: float | None = None

    def reached(self, figure: float) -> bool:
        """Return whether a figure is good enough."""
        least = float("-inf") if self.least is None else self.least
        return least <= figure <= (float("inf") if self.most is None else self.most)


def number(cell: str) -> float:
    """Return the first number of a cell: 1,234.5 or 61%, which is 0.61."""
    word = cell.split()[0].replace(",", "")
    return float(word[:-1]) / 100 if word.endswith("%") else float(word)


def best(rows: list[Row], column: str, **where: str) -> float | None:
    """Return the largest figure of a column where other columns begin with certain words."""
    found = [
        number(row[column])
        for row in rows
        if row.get(column) and all(row.get(key, "").startswith(w) for key, w in where.items())
    ]
    return max(found, default=None)


def ratio(above: float | None, below: float | None) -> float | None:
    """Return above / below, None if one is missing."""
    return above / below if above is not None and below else None


def _trained(rows: list[Row]) -> float | None:
    return ratio(best(rows, "images/s", form="ours"), best(rows, "images/s", form="timm"))


def _inferred(rows: list[Row]) -> float | None:
    ours = best(rows, "images/s", form="ours")
    return ratio(ours, best(rows, "images/s", form="timm compiled"))


def _dropped(rows: list[Row]) -> float | None:
    ours = best(rows, "images/s", rate="0.4", form="ours")
    return ratio(ours, best(rows, "images/s", rate="0.4", form="timm"))


def wide(size: str, batch: str = "") -> Callable[[list[Row]], float | None]:
    """Return the reader of the least ratio of two wide branches to a sequence, over batches."""

    def read(rows: list[Row]) -> float | None:
        ratios = [
            number(row["18x2 wide"]) / number(row["36x1"])
            for row in rows
            if row.get("18x2 wide") and row["model"] == size and batch in ("", row["batch"])
        ]
        return min(ratios, default=None)

    return read


def _augmented(rows: list[Row]) -> float | None:
    return best(rows, "step share")


GOALS = (
    Goal("inference, share of the rate", "inference", lambda r: best(r, "share", form="ours"), 0.6),
    Goal("inference, images/s over timm compiled", "inference", _inferred, 1.25),
    Goal(
        "training, share of the rate", "train-compiled", lambda r: best(r, "share", form="ours"),
        0.55,
    ),
    Goal("training, images/s over timm, both compiled", "train-compiled", _trained, 1.15),
    Goal("ViT-L/16 at rate 0.4, images/s over timm", "drop-path", _dropped, 1.4),
    Goal("S18x2 over S36x1, one image, graphs", "parallel-graphs", wide("S", "1"), 1.8),
    Goal("B18x2 over B36x1, one image, graphs", "parallel-graphs", wide("B", "1"), 1.8),
    Goal("S18x2 over S36x1, worst batch, graphs", "parallel-graphs", wide("S"), 1.0),
    Goal("B18x2 over B36x1, worst batch, graphs", "parallel-graphs", wide("B"), 1.0),
    Goal("S18x2 over S36x1, one image, from Python", "parallel", wide("S", "1"), 1.8),
    Goal("B18x2 over B36x1, one image, from Python", "parallel", wide("B", "1"), 1.8),
    Goal("augmentation over a ViT-S/16 step, worst recipe", "augment", _augmented, most=0.05),
)  # fmt: skip
