"""`vitlab.accelerate`: a model in the form that is the fastest on this machine, by measuring.

Candidates are timed on the model's own input size, and the order is kept in the folder of the
user's cache, for this machine, these packages and this shape. Whatever is chosen has agreed with
the plain model first, on every call, since that depends on the weights.
"""

import functools
import hashlib
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import torch
from torch import Tensor

from vitlab import device as devices
from vitlab.documents import read_json
from vitlab.errors import DiskError, OptionError, UserError
from vitlab.files import write_text
from vitlab.models.create import MODEL_OF, build
from vitlab.models.fast.engines import FP32, RUNTIMES, available, made, near, patterns
from vitlab.models.model import Model
from vitlab.on_device import exact
from vitlab.packages import check_installed
from vitlab.places import cache_folder
from vitlab.precision import Engine, Precision, check_precision, multiplies_bf16
from vitlab.progress import named_if_slow
from vitlab.public_calls import public
from vitlab.values import fits

CHANCES = 0.02  # how far bf16 may move a probability
PROBES = 4  # images that are compared
GAIN = 0.97  # share of the plain form's time that another one must stay below
LONGEST = 0.25  # seconds of a pass that is timed, unless it is of one image
ROUNDS, BUDGET = 5, 2.0  # of timing; seconds after which two rounds are enough
PAUSE = 0.05  # seconds for the threads of one engine to fall asleep before another is timed
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SLOW = 1.5  # times the fastest, beyond which a candidate is timed once only

Clock = Callable[[Model, Tensor], float]
"""A form and images -> the seconds of a pass."""


@dataclass(frozen=True)
class Timed:
    """What was measured of an engine.

    Attributes:
        engine: its name
        computes: fp32 or bf16
        image: seconds for an image, in a batch
        ready: seconds until it could compute
    """

    engine: Engine
    computes: Literal["fp32", "bf16"]
    image: float
    ready: float

    @property
    def dtype(self) -> torch.dtype:
        """The type of the products."""
        return DTYPES[self.computes]

    def cost(self, images: int | None) -> float:
        """Return the seconds for so many images; None for as many as make `ready` no matter."""
        image = self.image * (GAIN if self.engine == "plain" else 1)
        return image if images is None else self.ready + images * image


@public(model=Model)
def accelerate(
    model: Model,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    engine: Engine = "auto",
    batch: int = 1,
    images: int | None = None,
    probe: Tensor | None = None,
) -> Model:
    """Return a copy of a model for fast inference: same methods, and logits in fp32.

    Candidates: the plain model; its packed form (norms folded into the weights, which are laid out
    for oneDNN, GELU and sums within the products; in bf16 too); torch.compile on GPUs and where
    oneDNN packs nothing; ONNX Runtime and OpenVINO where they are installed. The fastest that
    agrees with the plain model is returned: features, patch tokens and their class token within
    1e-4 of their norm in fp32, and within 5% in bf16, probabilities within 0.02.

    Args:
        model: any; it stays as it is. Weights that are not fp32 are computed in the plain form
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; bf16; or auto, which is fp32, or bf16 where the device multiplies it
            faster, is timed as faster and agrees
        engine: auto, or one by its name
        batch: images that are computed together, most often
        images: how many there are in all; None for very many. Few are not worth an engine that
            takes seconds to make
        probe: the images to compare on, normalized (B, channels, H, W); None for random patterns

    Returns:
        The copy, in evaluation mode on the device. Its `engine` and `computes` say which it is and
        whether it computes in fp32 or bf16. It cannot be trained, saved or moved to another device.

    Raises:
        DeviceError: a device that this machine does not have.
        OptionError: an unknown engine or precision, or an engine that cannot compute this model.
        PackageError: an engine that is not installed.
    """
    check_precision(precision)
    check_engine(engine)
    where = devices.choose(device)
    plain = made("plain", model, where, torch.float32)
    if any(t.is_floating_point() and t.dtype is not torch.float32 for t in model.parameters()):
        return plain
    shown = (patterns(model, PROBES) if probe is None else probe).to(where)
    if engine == "auto":
        order = ranking(model, where, precision, batch)
        order.sort(key=lambda each: each.cost(images))
    else:
        order = [Timed(engine, each, 0, 0) for each in wanted_types(precision, where)]
        order = [each for each in order if engine in available(model, where, each.dtype)]
    if order and order[0].engine == "plain":
        return plain
    form = first_form_that_agrees(plain, where, order, precision, shown)
    if form is plain and engine != "auto":
        raise OptionError(f"engine={engine} cannot compute {model.config.name}: choose auto")
    return form


def first_form_that_agrees(
    plain: Model, where: torch.device, order: list[Timed], precision: Precision, shown: Tensor
) -> Model:
    """Return the first form in an order that agrees with a model on some images.

    Args:
        plain: the model, on the device and in evaluation mode
        where: the device
        order: engines, the best first
        precision: auto, fp32 or bf16
        shown: normalized (B, channels, H, W)

    Returns:
        The form; `plain` itself where that comes first, or none agrees.
    """
    wanted = answers(plain, shown)
    for each in order:
        if each.engine == "plain":
            return plain
        with suppress(Exception):  # an engine that cannot do it, for whatever reason
            form = made(each.engine, plain, where, each.dtype)
            if precision == "bf16" or agree(answers(form, shown), wanted, each.dtype):
                return form
    return plain


def ranking(
    model: Model,
    where: torch.device,
    precision: Precision = "auto",
    batch: int = 1,
    clock: Clock | None = None,
) -> list[Timed]:
    """Return the engines that can compute a model and what they take: measured now, or before.

    Args:
        model: any
        where: the device
        precision: auto, fp32 or bf16
        batch: images that are computed together
        clock: that times a pass, instead of `pass_seconds`, where others compute beside it
    """
    found = remembered(model, where, precision, batch)
    if not found:
        with named_if_slow(f"measuring which engine computes {model.config.name} fastest"):
            found = measured(model, where, precision, batch, clock or pass_seconds)
        about = {"model": model.config.name, "engines": [vars(each) for each in found]}
        with suppress(DiskError):  # a cache that cannot be written to
            write_text(_file(model, where, precision, batch), json.dumps(about, indent=1))
    return sorted(found, key=lambda each: each.cost(None))


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist or is not installed.

    Raises:
        OptionError: an unknown one.
        PackageError: it is not installed.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine must be one of {', '.join(get_args(Engine))}, not {engine!r}")
    if engine in RUNTIMES:
        check_installed(engine, f"engine={engine}", "choose engine=auto")


def wanted_types(precision: Precision, where: torch.device) -> list[Literal["fp32", "bf16"]]:
    """Return the precisions that are candidates, the faster first."""
    if precision != "auto":
        return [precision]
    return ["bf16", "fp32"] if multiplies_bf16(where) else ["fp32"]


def measured(
    model: Model, where: torch.device, precision: Precision, batch: int, clock: Clock
) -> list[Timed]:
    """Make every candidate, and time them in turn.

    The number of images together is `batch`, or as many as take a quarter of a second.
    """
    made_of, ready = dict[tuple[Engine, Literal["fp32", "bf16"]], Model](), {}
    for computes in wanted_types(precision, where):
        dtype = DTYPES[computes]
        for name in available(model, where, dtype):
            start = time.perf_counter()
            try:
                form = made(name, model, where, dtype)
                pass_seconds(form, patterns(model, 1).to(where))  # some compile first
            except Exception as error:  # whatever an engine may raise
                logging.getLogger("vitlab").debug("%s cannot be used: %s", name, error)
                continue
            made_of[name, form.computes] = form  # a ResNet stays in fp32
            ready[name, form.computes] = time.perf_counter() - start
    one = patterns(model, 1).to(where)
    alone = min(clock(form, one) for form in made_of.values())
    count = max(1, min(batch, int(LONGEST / alone)))
    images, taken = patterns(model, count).to(where), {each: list[float]() for each in made_of}
    end = time.perf_counter() + BUDGET
    for number in range(ROUNDS):
        for each, form in made_of.items():
            fastest = min((min(times) for times in taken.values() if times), default=0.0)
            if number and min(taken[each]) > SLOW * fastest:
                continue
            time.sleep(PAUSE)
            (clock if number else pass_seconds)(form, images)  # some compile for a new size
            taken[each].append(clock(form, images))
        if number and time.perf_counter() > end:
            break
    return [
        Timed(*each, statistics.median(times) / count, ready[each]) for each, times in taken.items()
    ]


@torch.inference_mode()
def pass_seconds(form: Model, images: Tensor) -> float:
    """Return the seconds of a pass."""
    start = time.perf_counter()
    form.features(images).sum().item()  # waits for a GPU
    return time.perf_counter() - start


@torch.inference_mode()
def answers(model: Model, images: Tensor) -> tuple[Tensor, ...]:
    """Return features, all tokens (B, …), probabilities (B, …) and distances (B,), in fp32."""
    features, inner = model.judge(images)
    far = features.new_zeros(len(images))
    if inner is not None and model.unlike is not None:
        far = model.unlike.distances(exact(inner))
    # graphs of all tokens are compared when they are made
    tokens = features if model.engine in RUNTIMES else model.encode(images)
    logits = model(images) if model.config.classes else features.new_zeros(len(images), 1)
    return features.float(), tokens.float(), logits.float().softmax(-1).flatten(1), far.float()


def agree(got: tuple[Tensor, ...], exact: tuple[Tensor, ...], dtype: torch.dtype) -> bool:
    """Return whether all of `answers` are within the limits of a precision."""
    pairs = [*zip(got, exact, strict=True)]
    chances = bool((got[2] - exact[2]).abs().max() <= CHANCES)  # NaN is not
    apart = (got[3] - exact[3]).abs() / exact[3].clamp(min=1)
    far = bool(apart.max() <= (FP32 if dtype is torch.float32 else CHANCES))
    return chances and far and all(near(a, b, dtype) for a, b in pairs[:2] if a.shape == b.shape)


def remembered(model: Model, where: torch.device, precision: Precision, batch: int) -> list[Timed]:
    """Return what was measured before for this machine, these packages and this shape."""
    with suppress(UserError, KeyError, TypeError):
        stored = read_json(_file(model, where, precision, batch), UserError)
        found = [Timed(**each) for each in stored["engines"]]
        kinds = get_type_hints(Timed)
        if all(fits(own, kinds[name]) for each in found for name, own in vars(each).items()):
            return found
    return []


def _file(model: Model, where: torch.device, precision: Precision, batch: int) -> Path:
    """Return the file of what was measured: its name depends on all that decides it."""
    others = ("labels", "classes", "mean", "std")
    shape = {key: repr(value) for key, value in vars(model.config).items() if key not in others}
    vectors = torch.backends.cpu.get_cpu_capability()
    machine = [platform.node(), devices.described(where), vectors, torch.__config__.parallel_info()]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    about = [machine, limit, versions(), shape, precision, batch]
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return cache_folder("engines") / f"{key[:32]}.json"


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the engines that are installed."""
    found = {}
    for name in ("vitlab", "torch", *RUNTIMES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def can_accelerate(model: Model) -> bool:
    """Return whether a model can be replaced by a faster form unnoticed.

    It is what its configuration says, and nothing more: no adapters, hooks or wrappers, and one
    size for all images. Its weights must be in fp32.
    """
    config = model.config
    if type(model) is not MODEL_OF[type(config)] or config.fit == "native":
        return False
    if any(each._forward_hooks or each._forward_pre_hooks for each in model.modules()):
        return False
    with torch.device("meta"):
        standard = build(config)
    kinds = [type(each) for each in standard.modules()]
    state = model.state_dict()
    return (
        [type(each) for each in model.modules()] == kinds
        and state.keys() == standard.state_dict().keys()
        and all(t.dtype == torch.float32 for t in state.values() if t.is_floating_point())
    )
