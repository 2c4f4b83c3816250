"""The commands by name: a line of each for `vitlab --help`, and the text that names its file.

To add a command, write its file in `commands/` and give it a line of `COMMANDS`. The file of a
command is imported when it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from vitlab.by_name import load_object
from vitlab.errors import OptionError

if TYPE_CHECKING:
    from vitlab.options import Options


@dataclass(frozen=True)
class Command:
    """What a command does.

    Attributes:
        run: makes of its options, whose class the argument's type names, the JSON object
        show: prints this as a table; without it, every figure has a line
        build: makes the options where the defaults depend on what is given; else their class does
        begin: comes before PyTorch is imported: it refuses early what checks of single options
            cannot, and may say what begins
        about: returns what the help ends with
        needs: packages that it cannot do without
        is_light: whether it works without PyTorch
        lasts: whether it goes on until a signal, and says itself what it does
    """

    run: Callable[[Any], dict[str, Any]]
    show: Callable[[dict[str, Any]], None] | None = None
    build: "Callable[[dict[str, Any]], Options] | None" = None
    begin: Callable[[Any], None] | None = None
    about: Callable[[], str] | None = None
    needs: tuple[str, ...] = ()
    is_light: bool = False
    lasts: bool = False

    @property
    def kind(self) -> "type[Options]":
        """The class of its options."""
        kind: type[Options] = get_type_hints(self.run)["options"]
        return kind

    def options(self, values: dict[str, Any]) -> "Options":
        """Return its options with these values, by their names."""
        return self.build(values) if self.build else self.kind.of(**values)


@dataclass(frozen=True)
class NamedCommand:
    """A command of the table.

    Attributes:
        home: its `Command`, as "module:object"
        summary: one line
    """

    home: str
    summary: str


COMMANDS: dict[str, NamedCommand] = {
    "finetune": NamedCommand(
        "vitlab.commands.finetune:COMMAND",
        "Fine-tune trained weights, test the model and write a report.",
    ),
    "train": NamedCommand(
        "vitlab.commands.train:COMMAND", "Train a model, test it and write a report."
    ),
    "pretrain": NamedCommand(
        "vitlab.commands.pretrain:COMMAND",
        "Train a model on images without labels, to fine-tune it later.",
    ),
    "evaluate": NamedCommand(
        "vitlab.commands.evaluate:COMMAND", "Measure accuracy and calibration on labeled images."
    ),
    "predict": NamedCommand(
        "vitlab.commands.predict:COMMAND", "Print the most likely classes of images."
    ),
    "measure": NamedCommand(
        "vitlab.commands.measure:COMMAND",
        "Count parameters and multiply-adds; time with --speed or --full.",
    ),
    "models": NamedCommand(
        "vitlab.commands.models:COMMAND",
        "List model names with their parameters and multiply-adds.",
    ),
    "recipes": NamedCommand("vitlab.commands.recipes:COMMAND", "List the training recipes."),
    "compare": NamedCommand(
        "vitlab.commands.compare:COMMAND", "Compare recipes over seeds, or runs: figures and tests."
    ),
    "completion": NamedCommand(
        "vitlab.commands.completion:COMMAND",
        "Print a script that completes the command line in a shell.",
    ),
    "delta": NamedCommand(
        "vitlab.commands.delta:COMMAND",
        "Save only the weights that fine-tuning changed, in one file.",
    ),
    "duplicates": NamedCommand(
        "vitlab.commands.duplicates:COMMAND", "Find near-duplicate images across two data sets."
    ),
    "embed": NamedCommand(
        "vitlab.commands.embed:COMMAND", "Write the features of images into Parquet."
    ),
    "explore": NamedCommand(
        "vitlab.commands.explore:COMMAND", "Look inside models in the browser, patch by patch."
    ),
    "export": NamedCommand(
        "vitlab.commands.export:COMMAND",
        "Write a model as ONNX, for PyTorch, browsers or other libraries.",
    ),
    "fewshot": NamedCommand(
        "vitlab.commands.fewshot:COMMAND",
        "Measure features: few shots, k-NN, linear classifiers by protocol.",
    ),
    "inspect": NamedCommand(
        "vitlab.commands.inspect:COMMAND",
        "Look inside a model: attention, filters, positions, features.",
    ),
    "load-check": NamedCommand(
        "vitlab.commands.load_check:COMMAND",
        "Identify a weights file: format, model, and every tensor.",
    ),
    "prepare": NamedCommand(
        "vitlab.commands.prepare:COMMAND",
        "Write a resized, verified, training-ready copy of a data set.",
    ),
    "probe": NamedCommand(
        "vitlab.commands.probe:COMMAND", "Fit a classifier to frozen features, and test it."
    ),
    "push": NamedCommand(
        "vitlab.commands.push:COMMAND", "Upload a model to the Hugging Face Hub, with a model card."
    ),
    "runs": NamedCommand(
        "vitlab.commands.runs:COMMAND", "List the runs and experiments in a folder."
    ),
    "search": NamedCommand(
        "vitlab.commands.search:COMMAND", "Find the nearest images in what `vitlab embed` wrote."
    ),
    "serve": NamedCommand(
        "vitlab.commands.serve:COMMAND",
        "Serve models over HTTP: classes, masks, boxes, numbers, features.",
    ),
    "soup": NamedCommand(
        "vitlab.commands.soup:COMMAND", "Average the weights of several fine-tuned models into one."
    ),
    "study": NamedCommand(
        "vitlab.commands.study:COMMAND", "Reproduce a table or figure of a paper."
    ),
    "vtab": NamedCommand(
        "vitlab.commands.vtab:COMMAND",
        "Fine-tune on VTAB-1k's 19 tasks, beside the ViT paper's figures.",
    ),
}
"""In the order of `vitlab --help`: first what most people begin with, then by the alphabet."""
MOST = 60  # characters of an unknown command that are repeated


def command_named(name: str) -> Command:
    """Import a command.

    Raises:
        OptionError: an unknown command, with the nearest known one.
    """
    if name not in COMMANDS:
        from vitlab.options import nearest

        raise OptionError(f"unknown command {name[:MOST]!r}; {nearest(name, list(COMMANDS))}")
    command: Command = load_object(COMMANDS[name].home)
    return command
