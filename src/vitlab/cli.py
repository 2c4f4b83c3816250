"""The command `vitlab`: parse, call, print. Nothing heavy is imported before its turn."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from vitlab.errors import UserError


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 2 the user can fix it, 130 interrupted, 1 a bug."""
    # OpenMP's threads spin while they wait for each other, and on a busy machine for a thread that
    # is not running; a short spin costs little alone and saves much in company (docs/log.md)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "--help"
    try:
        if name in ("-h", "--help"):
            print(_overview())
        elif name == "--version":
            print(f"vitlab {_version()}")
        elif name in COMMANDS:
            COMMANDS[name](words[1:])
        else:
            raise UserError(f"there is no such command; there are {', '.join(COMMANDS)}")
        sys.stdout.flush()
    except UserError as error:
        _fail(2, name, "" if error.quiet else str(error))
    except KeyboardInterrupt as stop:
        _fail(130, name, "" if getattr(stop, "quiet", False) else str(stop) or "interrupted")
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def train(words: list[str]) -> None:
    """Train a model from scratch, test it, write a report."""
    from vitlab.arguments import parse_train

    args, as_json = parse_train(words)
    import vitlab

    command = shlex.join(["vitlab", "train", *words])
    run = vitlab.train(args.recipe, args.out, resume=args.resume, host=args.host, command=command)
    if run.rank == 0:
        _print_figures(run.metrics, as_json)


def evaluate(words: list[str]) -> None:
    """Measure a model on labeled images."""
    from vitlab.arguments import Evaluate, parse

    args = parse(Evaluate, words, "evaluate")
    import vitlab

    figures = vitlab.evaluate(
        vitlab.load(args.weights),
        args.data,
        split=args.split,
        device=args.device,
        precision=args.precision,
        workers=args.workers,
    )
    for note in figures["notes"]:
        print(f"skipped: {note}", file=sys.stderr)
    _print_figures(figures, args.json)


def predict(words: list[str]) -> None:
    """Name the likeliest classes of images."""
    from vitlab.arguments import Predict, parse

    args = parse(Predict, words, "predict")
    import vitlab

    model = vitlab.load(args.weights)
    answers = vitlab.classify(
        model, args.images, top=args.top, device=args.device, workers=args.workers
    )
    for answer in (each for each in answers if each.error):
        print(f"skipped: {answer.error}", file=sys.stderr)
    if args.json:
        _print_json({"model": model.config.name, "predictions": [a.as_dict() for a in answers]})
        return
    for answer in (each for each in answers if not each.error):
        best = "  ".join(f"{name} {probability:.1%}" for name, probability in answer.classes)
        print(f"{answer.image}  {best}")


def measure(words: list[str]) -> None:
    """Count what models cost; time them with --speed."""
    from vitlab.arguments import Measure, parse

    args = parse(Measure, words, "measure")
    if not args.models:
        raise UserError("name a model, ViT-B/16 say, or a run folder")
    from vitlab.measure.summary import measure as measure_

    rows = [
        measure_(
            name,
            image_size=args.image_size,
            classes=args.classes,
            timed=args.speed,
            fused=args.fuse,
            batch=args.batch,
            device=args.device,
            precision=args.precision,
        )
        for name in args.models
    ]
    if args.json:
        _print_json(rows[0] if len(rows) == 1 else {"models": rows})
        return
    from vitlab.units import readable

    for row in rows:
        parts = row.pop("parts")
        own = [(f"  {p['part']}", f"{p['params']:,} / {p['macs']:,}") for p in parts]
        head = [*readable(row), ("part", "parameters / multiply-adds"), *own]
        _print_table(("figure", "value"), head)


def prepare(words: list[str]) -> None:
    """Write a training-ready copy of a data set."""
    from vitlab.arguments import Prepare, parse

    args = parse(Prepare, words, "prepare")
    from vitlab.data.loading.prepare import parts
    from vitlab.data.loading.prepare import prepare as prepare_
    from vitlab.progress import Meter, say

    sources = parts(args.data)
    with Meter(sum(map(len, sources.values())), title="preparing") as meter:
        figures = prepare_(
            sources,
            args.out,
            side=args.side,
            layout=args.format,
            quality=args.quality,
            workers=args.workers,
            seen=lambda images: meter.show(images, "images"),
            told=lambda message: say(f"skipped: {message}"),
        )
    _print_figures(figures, args.json)


def study(words: list[str]) -> None:
    """Make a table of a paper or an article anew."""
    from vitlab.arguments import Study, parse

    args = parse(Study, words, "study")
    from pathlib import Path

    from vitlab.recipes.named import default_recipe, recipe
    from vitlab.studies.optimizer_table import HEAD, shortened, table
    from vitlab.studies.optimizer_table import study as study_

    name = args.recipe or default_recipe(args.data)
    start = recipe(name, args.data, seed=args.seed, **({"model": args.model} if args.model else {}))
    start = shortened(start, args.epochs) if args.epochs else start
    out = Path(args.out or Path("runs") / f"study-{args.name}-{Path(args.data).name}")
    result = study_(start, out, args.host, args.only, args.lr_grid)
    if args.json:
        _print_json(result)
    else:
        _print_table(HEAD, table(result))


def models(words: list[str]) -> None:
    """List the models by name, with their cost."""
    from vitlab.arguments import List, parse

    args = parse(List, words, "models")
    from vitlab.models.config import config_of
    from vitlab.models.cost import cost
    from vitlab.models.names import MODELS

    prices = {name: cost(config_of(name)) for name in MODELS}
    if args.json:
        rows = [{"model": n, "params": p.params, "macs": p.macs} for n, p in prices.items()]
        _print_json({"image_size": 224, "models": rows})
        return
    _print_table(
        ("model", "parameters", "GMACs at 224"),
        [(n, f"{p.params / 1e6:.1f} M", f"{p.macs / 1e9:.2f}") for n, p in prices.items()],
    )
    print("Any other depth, number of branches and patch has its name too: ViT-S18x2/14, ViT-B13/8")


def load_check(words: list[str]) -> None:
    """Say what a file of weights is, tensor by tensor."""
    from vitlab.arguments import LoadCheck, parse

    args = parse(LoadCheck, words, "load-check")
    from vitlab.weights.check import look

    seen = look(args.source, name=args.name, image_size=args.image_size)
    for note in seen.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        _print_json(seen.as_dict())
        return
    _print_table(
        ("what", "value"),
        [("recognized as", seen.format), ("model", seen.model)]
        + [(key, str(value)) for key, value in seen.config.items() if key != "labels"],
    )
    rows = [
        (", ".join(m.ours), ", ".join(m.theirs) or "computed", " ".join(map(str, m.shapes)))
        for m in seen.tensors
    ]
    _print_table(("tensor", "from", "shape there"), rows)
    _print_table(("left out", "because it is"), list(seen.left_out.items()))


def export(words: list[str]) -> None:
    """Write a model in another format."""
    from vitlab.arguments import Export, parse

    args = parse(Export, words, "export")
    import vitlab

    model = vitlab.load(args.weights, name=args.name)
    folder = vitlab.save(model, args.out, to=args.to)
    files = sorted(each.name for each in folder.iterdir())
    if args.json:
        _print_json({"model": model.config.name, "format": args.to, "folder": str(folder)})
        return
    print(f"{model.config.name} for {args.to}: {folder} ({', '.join(files)})")


def delta(words: list[str]) -> None:
    """Keep what a fine-tuned model has that its base has not."""
    from vitlab.arguments import DeltaOf, parse

    args = parse(DeltaOf, words, "delta")
    import vitlab

    base = vitlab.load(args.base)
    change = vitlab.delta(vitlab.load(args.weights), base)
    file = change.save(args.out)
    whole = sum(tensor.nbytes for tensor in base.state_dict().values())
    figures = {"bytes": change.bytes, "share": change.bytes / whole, "file": str(file)}
    if args.json:
        _print_json(figures)
        return
    print(f"{file}: {len(change.tensors)} tensors, {change.bytes / whole:.1%} of {args.base}")


def push(words: list[str]) -> None:
    """Put a model on the Hugging Face hub, with a card."""
    from vitlab.arguments import Push, parse

    args = parse(Push, words, "push")
    import vitlab

    model = vitlab.load(args.weights)
    url = vitlab.push(model, args.to, private=args.private, license=args.license)
    if args.json:
        _print_json({"model": model.config.name, "url": url})
        return
    print(url)


def recipes(words: list[str]) -> None:
    """List the training recipes by name."""
    from vitlab.arguments import List, parse

    args = parse(List, words, "recipes")
    from vitlab.recipes.named import RECIPES

    about = {name: (make.__doc__ or "").splitlines()[0] for name, make in RECIPES.items()}
    if args.json:
        rows = [{"recipe": n, "about": about[n]} | RECIPES[n]().as_tables() for n in about]
        _print_json({"recipes": rows})
        return
    _print_table(("recipe", "for"), list(about.items()))
    print("vitlab train DATA --recipe NAME --help shows every field of a recipe and its value")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        train,
        evaluate,
        predict,
        measure,
        study,
        prepare,
        load_check,
        export,
        delta,
        push,
        models,
        recipes,
    )
}


def _overview() -> str:
    lines = [f"  {name:<10} {make.__doc__}" for name, make in COMMANDS.items()]
    return "\n".join(
        [
            "vitlab, the Vision Transformer workbench",
            "",
            "usage: vitlab COMMAND …",
            "",
            *lines,
            "",
            "vitlab COMMAND --help explains a command. To begin: vitlab train digits",
        ]
    )


def _version() -> str:
    from importlib.metadata import version

    return version("vitlab")


def _fail(status: int, name: str, message: str) -> NoReturn:
    """One line on stderr, unless it is empty, then out."""
    if message:
        print(f"vitlab {name}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def _print_figures(figures: dict[str, Any], as_json: bool) -> None:
    from vitlab.units import readable

    if as_json:
        _print_json(figures)
    else:
        _print_table(("figure", "value"), readable(figures))


def _print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
