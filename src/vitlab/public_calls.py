"""Public calls: what every function that Python calls has, and the words in which it refuses.

`public` gives functions `quiet=True`, and a line for an argument of a wrong type. Messages are
written as the command line says them; a caller in Python reads the names of its arguments.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection
from functools import wraps
from types import FrameType
from typing import Any, TypeVar, cast

from vitlab.errors import BY_COMMAND, OptionError, UserError, as_user_error
from vitlab.progress import QUIET, named_if_slow

F = TypeVar("F", bound=Callable[..., Any])
MODEL = "a model is needed: vitlab.load(...), vitlab.create(...) or a run's .model"
PLACE = (str, os.PathLike, type(None))  # of what a run writes; None for a new folder
DOING = {  # by the name of a function that others call
    "load": "loading the model",
    "save": "saving the model",
    "delta": "comparing with the start",
    "accelerate": "making the model fast",
}
NEEDED = {  # by the type of an argument
    "Recipe": "a Recipe is needed: vitlab.recipe(...)",
    "Model": MODEL,
    "Module": MODEL,
    "Sequence": "a list is needed",
    "str": "a name is needed",
}
# A command that a message quotes, which stays; or an option, with the value that follows it.
OPTION = re.compile(
    r"(?P<command>\b(?:vitlab [a-z-]+|docker|pip|torchrun|ulimit|xcode-select) [^,;:()]*)|"
    r"--(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
    r"(?:[ =](?P<value>\d[\w./-]*(?: \d[\w.-]*)*(?<![.-])%?|'[^']*'|[A-Z]{2,}|"
    r"(?:auto|bce|bf16-pure|bf16|cpu|crop|csv|cuda|detect|focal|fp16|fp32|head|inner|int8|knn|no|"
    r"none|onnx|outer|parquet|regress|segment|sampling|sigmoid|stored|tar|tensorboard|token|"
    r"tokenizer|torch|trackio|upright|vitlab|wandb|weights|yes)(?![\w-])))?"
)
TWICE = re.compile(r"((\w+=)\S*) \(\2[^)]*\)")  # an argument that a message names in both ways
FLAGS = ("resume", "change", "replace", "allow-outside", "drop-duplicates", "bare", "decoder")
OF_HOST = ("device", "workers", "max_bad", "compile", "track", "probe", "shard", "timeout",
           "check_duplicates", "checkpoint_activations")  # fmt: skip
OTHER_NAMES = {  # in Python, where a function has them
    "from": "weights",
    "sweep": "grid",
    "sweep_layer_decay": "layer_decays",
    "sweep_share": "share",
    "sweep_more": "more",
}
# A setting of a sweep, as its record has it, which a message names without dashes.
SWEPT = re.compile(r"(?<![\w/.-])(?:sweep(?==)|sweep_(?:layer_decay|share|more)(?![\w/.-]))")


def public(**needed: type | tuple[type, ...]) -> Callable[[F], F]:
    """Check the types of some arguments of a function, and obey its `quiet=True`.

    Calling it raises OptionError in one line that says what is needed, and DiskError for what the
    system refuses and a person can mend. What a function that trains refuses names its arguments in
    Python, in place of options.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        doing = DOING.get(function.__name__, function.__name__)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if "host" in signature.parameters:
                check_guarded(sys._getframe(1))
            found = signature.bind_partial(*given, **named).arguments
            for name, kinds in needed.items():
                if name in found and not isinstance(found[name], kinds):
                    kind = (kinds if isinstance(kinds, tuple) else (kinds,))[0].__name__
                    raise OptionError(
                        f"{name} is of type {type(found[name]).__name__}, but {NEEDED[kind]}"
                    )
            before = QUIET.set(QUIET.get() or bool(named.get("quiet")))
            try:
                with named_if_slow(doing, by_itself=False):
                    return function(*given, **named)
            except UserError as error:
                if "host" in signature.parameters and not BY_COMMAND.get():
                    error.args = (in_python(str(error), signature.parameters),)
                raise
            except (OSError, RuntimeError, UnicodeEncodeError) as error:
                raise as_user_error(error) from error.__cause__
            finally:
                QUIET.reset(before)

        return cast(F, call)

    return decorate


def check_guarded(caller: FrameType) -> None:
    """End a process that runs its parent's script again, which starts processes without a guard.

    Raises:
        SystemExit: with one line.
    """
    again = caller.f_globals.get("__name__") == "__mp_main__"  # what multiprocessing names it
    if again and caller.f_code.co_name == "<module>":
        raise SystemExit(
            "processes that a script starts run the script again: put what it does into a "
            'function, and call that below `if __name__ == "__main__":`'
        )


def in_python(text: str, arguments: Collection[str]) -> str:
    """Return a message for a caller in Python: `budget="7m"` for `--budget 7m`.

    Args:
        text: as the command line says it
        arguments: names of those of the function that was called
    """

    def to_argument(found: re.Match[str]) -> str:
        if found["command"]:
            return found[0]
        name = found["name"].replace("-", "_")
        other = OTHER_NAMES.get(name, name)
        name = other if other in arguments or name == "from" else name
        value = found["value"] or ("True" if found["name"] in FLAGS else "")
        if " " in value:
            value = f"({value.replace(' ', ', ')})"
        elif value and not re.fullmatch(r"[\d.]+(e-?\d+)?|True|[A-Z]+|'.*'", value):
            value = f'"{value}"'
        within = name in OF_HOST and name not in arguments and "host" in arguments
        return f"host=vitlab.Host({name}={value or '…'})" if within else f"{name}={value}"

    def to_setting(found: re.Match[str]) -> str:
        other = OTHER_NAMES[found[0]]
        return other if other in arguments else found[0]

    if "Python" in text:
        return text
    return TWICE.sub(r"\1", SWEPT.sub(to_setting, OPTION.sub(to_argument, text)))
