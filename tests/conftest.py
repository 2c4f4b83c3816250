"""What several tests share."""

import functools
import gc
import importlib.util
import inspect
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest-xdist already uses every core

import numpy as np
import pytest
import torch
from PIL import Image

from oracles.peers import prepare_torchvision
from vitlab import precision
from vitlab.data import boxes
from vitlab.data.images import Images
from vitlab.data.sources import memory
from vitlab.effort import Effort
from vitlab.models.fast import accelerate
from vitlab.models.model import Model
from vitlab.recipes.recipe import Host
from vitlab.runs import versions

pytest_plugins = ["steady", "six_runs", "graphs.traced"]
prepare_torchvision()  # before transformers or timm import it
torch.set_num_threads(1)  # also if something imported it first

NEEDED = 300  # MB of temporary files, more than all tests at once
MEMORY = Path("/dev/shm")
ROOMY = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31
if "TMPDIR" not in os.environ and ROOMY:  # a disk takes 3 ms to remove a folder
    compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)  # too large for memory
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_sessionstart() -> None:
    """Say that the disk is nearly full, rather than fail in a hundred ways."""
    place = tempfile.gettempdir()
    if (left := shutil.disk_usage(place).free // 2**20) < NEEDED:
        pytest.exit(
            f"the disk of {place} has {left} MB left, and the tests need {NEEDED}: "
            "free some space, or set TMPDIR to a folder on another disk",
            returncode=2,
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Walk no garbage while everything is imported, nor ever again what was.

    With all of PyTorch, transformers and timm in memory, each full collection takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def _empty() -> list[Path]:
    """Folders in which a test has left nothing, for others: making one takes milliseconds."""
    return []


@pytest.fixture(autouse=True, scope="module")
def logging_as_before() -> Iterator[None]:
    """A service logs to a stream of its test: not beyond the module."""
    names = ("vitlab", "vitlab.serve", "uvicorn.error", "asyncio")
    loggers, root = [logging.getLogger(name) for name in names], logging.getLogger()
    before = [(each.handlers[:], each.propagate, each.level) for each in loggers]
    yield
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)  # of a library


@pytest.fixture(autouse=True)
def _own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, _empty: list[Path]
) -> Iterator[None]:
    """A test works in an empty folder, with a cache of its own; what it leaves goes at its end."""
    here = _empty.pop() if _empty else tmp_path_factory.mktemp("here")
    cache = here.with_name(f"{here.name}-cache")  # made by whoever needs it
    monkeypatch.chdir(here)
    monkeypatch.setenv("VITLAB_CACHE", str(cache))
    yield
    monkeypatch.undo()  # nobody stands in a folder that goes
    shutil.rmtree(cache, ignore_errors=True)
    if here.is_dir() and not any(here.iterdir()):
        _empty.append(here)
    else:
        shutil.rmtree(here, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures of modules, too, keep nothing in the user's cache, nor find there what was kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _without_bf16() -> Iterator[None]:
    """`auto` is fp32 on every processor, so that tests compute the same; some ask for bf16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "has_bf16", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _timed_once() -> Iterator[None]:
    """Engines are timed once for a shape, not again in the empty cache of every test."""
    known, measured = dict[str, list[accelerate.Timed]](), accelerate.measured

    def once(model: Model, *how: Any) -> list[accelerate.Timed]:
        key = repr((model.config, how))
        known[key] = known.get(key) or measured(model, *how)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate, "measured", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _asked_git_once() -> Iterator[None]:
    """Every run notes the revision, for which three processes are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "_revision", functools.cache(versions._revision))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_sync() -> Iterator[None]:
    """Wait for no disk: what a killed process wrote is there anyway, and tests cut no power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def photo(seed: int, rows: int = 24, columns: int = 32, tint: int = 0) -> Image.Image:
    """A smooth random RGB picture with a tint of its class, so that it can be learned."""
    generator = np.random.default_rng((seed, tint))
    coarse = generator.integers(0, 120, (3, 4, 3)).astype(np.uint8)
    coarse[..., tint % 3] += 130
    return Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)


def photo_folder(root: Path, classes: dict[str, int], rows: int = 24, columns: int = 32) -> Path:
    """Class folders with so many pictures each."""
    for tint, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            photo(number, rows, columns, tint).save(root / name / f"{number:03d}.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of twenty pictures, 24x32 RGB."""
    return photo_folder(tmp_path / "photos", {"blue": 20, "green": 20, "red": 20})


def environment(**more: str) -> dict[str, str]:
    """The environment of a fresh interpreter that is to import this very copy of the package."""
    source = Path(importlib.util.find_spec("vitlab").origin).parents[1]
    return dict(os.environ) | {"PYTHONPATH": str(source)} | more


BRIEF = Effort(folds=3, resamples=100, memory=False, report=False)
SHOWN = replace(BRIEF, report=True)  # drawing takes three times as long as the rest of a small run
LIGHT = Host(effort=BRIEF)


def call(
    capsys: pytest.CaptureFixture[str], *words: str, effort: Effort = BRIEF
) -> tuple[int, str, str]:
    """Run a command in this process; return its exit status, stdout and stderr."""
    from vitlab.cli import main

    with pytest.raises(SystemExit) as stop:
        main(words, effort=effort)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def fewer_scenes(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """`digit-scenes` has 64 scenes to learn from and 16 to test on."""
    boxes.scenes.cache_clear()
    patch.setattr(boxes, "COUNTS", {"train": 64, "test": 16})
    yield
    boxes.scenes.cache_clear()


@contextmanager
def fewer_digits(count: int = 360) -> Iterator[None]:
    """`digits` has its first images alone: 287 to learn from and 73 to test on."""
    real = inspect.unwrap(memory.digits)

    @functools.wraps(real)
    def few() -> Images:
        return real().take(np.arange(count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "digits", few)
        yield


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same for one test."""
    yield from fewer_scenes(monkeypatch)


QUICK = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/4"]
QUICK += ["--epochs", "1", "--batch", "256", "--workers", "0"]
TINY = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/4", "ema": 0.9}
