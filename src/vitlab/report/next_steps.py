"""Next steps of a report: commands that use the model, hand it over, and follow it with a next run.

Each is a phrase and a line to copy, in the folder where the run was started.
"""

import re
import shlex
from pathlib import PurePath

from vitlab.recipes.recipe import PROBE
from vitlab.report.facts import RunFacts
from vitlab.report.page import Commands

APART = ("tokenizer", "detect", "segment", "regress")  # tasks whose head is beside the model
VALUED = ("--out",)  # options of a command that the next run does not take over, with a value
BARE = ("--resume", "--replace")  # and without


def next_steps(facts: RunFacts) -> Commands:
    """Return what can be done with the model now: a phrase and its command."""
    run = shlex.quote(facts.folder)
    data = shlex.quote(facts.data or "DATA")
    asking = f"vitlab predict {run} IMAGE…"
    own = {
        "": [
            ("Ask it about photographs", asking),
            ("Give it a web page and an address for programs", f"vitlab serve {run}"),
        ],
        "tokenizer": [
            ("Learn to predict its codes", f"vitlab pretrain {data} --task beit --tokenizer {run}")
        ],
        "detect": [("Find the objects of photographs", f"{asking} --out found")],
        "segment": [("Segment photographs", f"{asking} --out masks")],
        "regress": [("Estimate the numbers of photographs", asking)],
    }
    features = [
        ("Make a classifier from labeled images", f"vitlab finetune DATA --from {run}"),
        ("Measure its features with few labels", f"vitlab fewshot {run} DATA"),
        ("Write its features into a table", f"vitlab embed {run} DATA --out features.parquet"),
        ("Look inside it", f"vitlab inspect {run} IMAGE… --out inside"),
    ]
    return Commands([*own.get(facts.task, features), *_give_away(facts), *_train_again(facts)])


def _give_away(facts: RunFacts) -> list[tuple[str, str]]:
    """Return how somebody else gets the model: packed, and used where it was unpacked."""
    run = PurePath(facts.folder)
    if facts.task == "tokenizer":
        return []
    uses = {
        "": "vitlab predict {} IMAGE…",
        "detect": "vitlab predict {} IMAGE… --out found",
        "segment": "vitlab predict {} IMAGE… --out masks",
        "regress": "vitlab predict {} IMAGE…",
    }
    use = uses.get(facts.task, "vitlab finetune DATA --from {}")
    if facts.task in APART:
        name = run.name
        what = "the run's folder without its checkpoints"
        pack = f"tar -czf model.tar.gz --exclude=checkpoints -C {shlex.quote(str(run.parent))}"
    else:
        name = "model"
        what = "the folder model, which is all they need"
        pack = f"tar -czf model.tar.gz -C {shlex.quote(str(run))}"
    own = shlex.quote(name)
    return [
        (f"Give it to somebody: pack {what}", f"{pack} {own}"),
        (
            "They unpack and use it, where ViTLab is installed",
            f"tar -xzf model.tar.gz && {use.format(own)}",
        ),
    ]


def _train_again(facts: RunFacts) -> list[tuple[str, str]]:
    """Return how more photographs are learned from, and what that gains on the same test images."""
    if facts.task or not facts.data:
        return []
    run = facts.folder
    following = next_run(run)
    if typed := str(facts.run.get("command", "")):
        again = next_command(typed, following)
    elif facts.option("recipe", "recipe") == PROBE:
        again = shlex.join(["vitlab", "probe", facts.data, "--out", following])
        if weights := facts.option("start", "weights"):
            again += f" --from {shlex.quote(str(weights))}"
    else:
        again = shlex.join(["vitlab", "train", "--recipe", run, "--out", following])
    words = (
        f"More photographs next week: add them to {facts.data}, train again, and compare both on "
        "the same test images"
    )
    return [(words, f"{again} && {shlex.join(['vitlab', 'compare', run, following])}")]


def next_run(folder: str) -> str:
    """Return the folder of the run that follows: `runs/ants-2` after `runs/ants`."""
    found = re.fullmatch(r"(.*?)-(\d{1,4})", folder)
    return f"{found[1]}-{int(found[2]) + 1}" if found else f"{folder}-2"


def next_command(command: str, out: str) -> str:
    """Return a command with another folder for its run.

    Args:
        command: as it was typed
        out: the folder
    """
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not match
        return command
    kept = list[str]()
    is_value = False
    for word in words:
        name = word.partition("=")[0]
        if not is_value and name not in (*VALUED, *BARE):
            kept.append(word)
        is_value = word in VALUED
    return shlex.join([*kept, "--out", out])
