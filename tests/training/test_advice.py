"""Every option that a message of a run recommends is one that its command takes."""

import inspect
import re
from pathlib import Path

import vitlab
from vitlab.commands import pretrain
from vitlab.commands.pretrain import Pretrain
from vitlab.commands.train import Train, build
from vitlab.console.parsing import parse

SOURCE = Path(inspect.getfile(vitlab)).parent
ROOMS = ("training", "distributed", "optim", "report", "runs")  # comparing lists options of runs
FILES = [f for room in ROOMS for f in (SOURCE / room).rglob("*.py") if f.parent.name != "comparing"]
FILES += [SOURCE / name for name in ("device.py", "files.py", "locks.py")]
VALUES = {  # for options that the messages name without a value
    "--batch": "64", "--budget": "90s", "--epochs": "3", "--image-size": "32", "--lr": "0.01",
    "--max-bad": "5%", "--model": "ViT-Ti/16", "--out": "run", "--patience": "3", "--rho": "0.1",
    "--steps": "5", "--timeout": "9", "--track": "wandb", "--warmup": "2", "--device": "cpu",
    "--precision": "bf16", "--micro-batch": "auto", "--from": "run",
    "--change": "--resume", "--folds": "5", "--probe": "digits", "--check-duplicates": "no",
    "--task": "beit", "--tokenizer": "run", "--object-queries": "9",
    "--fit": "squash",
    "--tokens": "64", "--recipe": "small",
}  # fmt: skip
BESIDE = {  # options that apply only with others
    "--object-queries": ("--task", "detect"),
    "--tokens": ("--fit", "native"),
}
FOREIGN = {  # of torchrun, git, tar, vitlab evaluate and probe
    "--exclude", "--replace", "--nproc-per-node", "--porcelain", "--untracked-files", "--help",
    "--calibrate", "--json", "--label-errors",
}  # fmt: skip


def test_the_advice_of_every_message_is_followed() -> None:
    pattern = r"(?<!var\()--[a-z][a-z-]+\b(?![-:])(?: (?:auto|cpu|cuda|bf16|fp32|yes|no|on|off)\b)?"
    advice = {each for file in FILES for each in re.findall(pattern, file.read_text())}
    advice = {each for each in advice if each.split()[0] not in FOREIGN}
    assert len(advice) > 15
    for each in sorted(advice):
        option, _, value = each.partition(" ")
        value = value or VALUES.get(option, "")
        words = [option, value] if value else [option]
        if option == "--task" or option.removeprefix("--").replace("-", "_") in Train.ELSEWHERE:
            task = [] if option == "--task" else ["--task", "beit"]
            learned = pretrain.build(parse(Pretrain, ["digits", *task, *words]))
            assert isinstance(learned, Pretrain), each
        else:
            options = build(parse(Train, ["digits", *BESIDE.get(option, ()), *words]))
            assert isinstance(options, Train), each
