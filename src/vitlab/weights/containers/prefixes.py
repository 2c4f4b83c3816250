"""Prefixes of names that come from how a model was trained, not from what it is."""

import re

# Modules that PyTorch's engines put around others, anywhere in a name.
ENGINES = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
# Attributes under which training scripts keep the whole model.
HOLDERS = (
    "module", "model", "net", "network", "backbone", "student", "teacher", "encoder", "ema_model",
    "online_model", "state_dict", "params",
)  # fmt: skip


def without_engines(names: list[str]) -> dict[str, str]:
    """Return the names in a file by the same names without the modules of engines.

    Data parallelism's `module` is one at the front, and at any place where all names stay apart.
    """
    for pattern in (re.compile(ENGINES.pattern + r"|(?:(?<=\.)|^)module\."), ENGINES):
        short = {pattern.sub("", name): name for name in names}
        if len(short) == len(names):
            return short
    return {name: name for name in names}


def without_holders(stored: dict[str, str]) -> dict[str, str]:
    """Return the same without a prefix that all names have in common, if it is a usual one."""
    for _ in range(8):
        first = {name.partition(".")[0] for name in stored}
        if len(first) != 1 or not first <= set(HOLDERS):
            break
        stored = {name.partition(".")[2]: old for name, old in stored.items()}
    return stored
