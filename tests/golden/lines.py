"""The lines of `lines.toml`, and the help page of every command."""

import tomllib
from pathlib import Path

COMMANDS = (
    "compare", "completion", "delta", "duplicates", "embed", "evaluate", "explore", "export",
    "fewshot", "finetune", "inspect", "load-check", "measure", "models", "predict", "prepare",
    "pretrain", "probe", "push", "recipes", "runs", "search", "serve", "soup", "study", "train",
    "vtab",
)  # fmt: skip


def _read() -> dict[str, dict[str, str]]:
    file = Path(__file__).with_name("lines.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


GROUPS = _read()
SHORT = GROUPS.pop("short")
GROUPS["words"] |= {f"help-{name}": f"{name} --help" for name in COMMANDS}


def spelled(line: str) -> str:
    """Return a line with its options in full."""
    return " ".join(SHORT.get(word, word) for word in line.split(" "))
