"""Batches that workers hand over, and what ends where they cannot."""

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

import vitlab
from training.kept import EACH, weights
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.handover import Carried, WorkerDiedError
from vitlab.data.loading.loader import deaths_explained, loader
from vitlab.errors import DataError, RunError, UserError
from vitlab.models.packed import Packed

ADVICE = r"pass --workers 0.*docker run --shm-size"
IN_PYTHON = (
    r"pass host=vitlab.Host\(workers=0\).*a smaller batch=, .*"
    r"docker run --shm-size 2g and a larger --memory.*saved after step 0: pass resume=True"
)


def batch(number: int) -> Batch:
    """A batch of everything that one may hold."""
    made = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (3, 8, 8, 3), dtype=torch.uint8, generator=made)
    none, labels = torch.empty(3, 0), torch.arange(3) + number
    native = Packed.of([each.permute(2, 0, 1) for each in images], 4)
    view = Batch(images[:, :4], torch.rand(3, 5, generator=made).bfloat16(), none, labels)
    return Batch(native, labels, none, labels, [(number, "a\udcff.png: torn")], 9, (view,))


class Batches(Dataset[Any]):
    def __getitem__(self, k: int) -> Any:
        return [batch(k), np.asfortranarray(np.ones((300, k + 1))), torch.tensor(k), "a" * 5000][k:]


def flat(value: Any) -> list[Any]:
    """What a batch has, in order, its tensors as lists."""
    if isinstance(value, Tensor):
        return [value.dtype, value.shape, value.tolist()]
    if isinstance(value, np.ndarray):
        return [value.dtype, value.tolist()]
    if isinstance(value, list | tuple):
        return [part for each in value for part in flat(each)]
    return [part for each in vars(value).values() for part in flat(each)] if hasattr(
        value, "__dict__") else [value]  # fmt: skip


@pytest.mark.parametrize(
    "system", [pytest.param("this", marks=pytest.mark.workers), "sandbox", "other"]
)
def test_what_is_handed_over_is_the_same(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """For any number of workers, also where the system has no anonymous memory."""
    if system == "sandbox":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    if system == "other":
        monkeypatch.setattr(sys, "platform", "freebsd")
    want = [flat(each) for each in loader(Batches(), range(4), 0)]
    for workers in (1, 2):
        got = [*loader(Batches(), range(4), workers)]
        assert [flat(each) for each in got] == want
        got[0][0].views[0].images.add_(1)  # it is the parent's own


def test_no_descriptor_stays_open() -> None:
    for left in (False, True):
        loaded = iter(loader(Batches(), range(4), 2))
        before = len(list(Path("/dev/fd").iterdir()))
        first = next(loaded)
        rest = [] if left else [*loaded]
        del loaded, first, rest
        gc.collect()
        assert len(list(Path("/dev/fd").iterdir())) <= before


def test_memory_of_its_own_is_bound_by_no_shared_memory() -> None:
    """As /dev/shm of a container is: what workers load takes none of it."""
    shared = Path("/dev/shm")
    if not hasattr(os, "memfd_create") or not shared.is_dir():
        pytest.skip("there is no anonymous memory")
    others = {each.pid for each in multiprocessing.active_children()}
    loaded = iter(loader(Large(), range(4), 2))
    next(loaded)
    workers = [each for each in multiprocessing.active_children() if each.pid not in others]
    assert len(workers) == 2
    inherited = shared_memory_of("self")  # of tests before this one
    for each in workers:
        assert shared_memory_of(each.pid) <= inherited


def shared_memory_of(process: object) -> set[str]:
    """The files of PyTorch's shared memory that a process has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/torch" in line}


class Large(Dataset[Tensor]):
    def __getitem__(self, k: int) -> Tensor:
        return torch.zeros(2**20, dtype=torch.uint8)


# What a worker cannot hand over: each of these ends in one line


class OddError(Exception):
    """Of an exception that pickles, but is not made of one text."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one, other)


def _limited(kind: int, most: int) -> None:
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def no_memory() -> Tensor:
    _limited(resource.RLIMIT_FSIZE, 2**16)  # which counts for memory with a descriptor, too
    return torch.zeros(2**20)


def no_descriptor() -> Tensor:
    _limited(resource.RLIMIT_NOFILE, 3)
    return torch.zeros(2**20)


def not_pickled() -> object:
    return Path(os.devnull).open()


def huge_image() -> NDArray[np.uint8]:
    return np.empty(2**60, np.uint8)


def local_error() -> None:
    class OwnError(Exception):
        pass

    raise OwnError("of my own")


def odd_error() -> None:
    raise OddError(1, 2)


def one_line_error() -> None:
    raise DataError("labels.csv: no such column\nas that")


def killed_by(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


CANNOT: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "memory": (no_memory, WorkerDiedError, rf"cannot hand over .*(too large|27).*{ADVICE}"),
    "descriptors": (no_descriptor, WorkerDiedError, r"cannot hand over .*[Tt]oo many open files"),
    "objects": (not_pickled, WorkerDiedError, r"cannot hand over .*cannot pickle"),
    "huge": (huge_image, WorkerDiedError, r"is out of memory \(.*try fewer --workers"),
    "errors": (local_error, DataError, r"raised .*OwnError: of my own; --workers 0 shows where"),
    "lines": (one_line_error, DataError, r"^labels.csv: no such column\\nas that$"),
    "kill": (killed_by(signal.SIGKILL), WorkerDiedError, "died, possibly out of memory; try"),
    "crash": (killed_by(signal.SIGSEGV), WorkerDiedError, "worker died of SIGSEGV; --workers 0"),
    "exit": (lambda: os._exit(3), WorkerDiedError, "ended by itself .exit status 3.; --workers 0"),
    "sys.exit": (lambda: sys.exit(4), WorkerDiedError, "ended by itself .exit status 4."),
    "stop": (killed_by(signal.SIGSTOP), WorkerDiedError, "was stopped .SIGSTOP. while its batch"),
}


class Cannot(Dataset[Any]):
    """The second item is what a worker cannot load or hand over."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __getitem__(self, k: int) -> Any:
        return CANNOT[self.what][0]() if k == 1 else torch.zeros(2**20)


@pytest.mark.parametrize("what", CANNOT)
def test_what_a_worker_cannot_hand_over_is_one_line(what: str) -> None:
    _, kind, line = CANNOT[what]
    with pytest.raises(kind, match=line) as caught, deaths_explained():
        list(loader(Cannot(what), range(4), 2))
    assert "\n" not in str(caught.value)


def test_an_error_of_several_values_stays_an_error() -> None:
    CANNOT["odd"] = (odd_error, RuntimeError, "")
    with pytest.raises(RuntimeError, match="OddError"), deaths_explained():
        list(loader(Cannot("odd"), range(4), 2))


class Own(Dataset[tuple[NDArray[np.uint8], int]]):
    """A person's own images; a worker has no memory for its batches once there is a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "full"

    def __len__(self) -> int:
        return 40

    def __getitem__(self, k: int) -> tuple[NDArray[np.uint8], int]:
        if get_worker_info() is not None and self.file.exists():
            _limited(resource.RLIMIT_FSIZE, 0)
        return np.full((70, 80, 3), 6 * k, np.uint8), k % 2


def test_a_run_without_memory_for_batches_is_saved(tmp_path: Path) -> None:
    data, host = Own(tmp_path), replace(EACH, workers=1)
    about: dict[str, Any] = {"image_size": 16, "steps": 3, "batch": 8, "warmup": 0}
    recipe = vitlab.recipe("small", model="ViT(width=16,depth=1,heads=2,mlp=16)/8", **about)
    train = partial(vitlab.train, recipe, tmp_path / "run", data=data, host=host)
    data.file.touch()
    with pytest.raises(RunError, match=IN_PYTHON) as caught:
        train()
    assert "\n" not in str(caught.value)
    data.file.unlink()
    assert weights(train(resume=True)) == weights(
        vitlab.train(recipe, tmp_path / "whole", data=data, host=EACH)
    )


class Gone(Dataset[int]):
    """Of a module that a worker cannot import."""

    def __getitem__(self, k: int) -> int:
        return k


REASON = "worker processes cannot import what the data is made of .*Gone.*: put its classes"


def test_a_class_that_a_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("notebook")
    module.Gone = Gone  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "notebook", module)
    monkeypatch.setattr(Gone, "__module__", "notebook")
    data = pickle.dumps(Carried(Gone()))
    for without in (lambda: delattr(module, "Gone"), lambda: sys.modules.pop("notebook")):
        without()
        with pytest.raises(DataError, match=r"cannot import .*otebook.*: put") as caught:
            pickle.loads(data)[0]
        assert "workers=0" in str(caught.value)
        assert isinstance(caught.value, UserError)


@pytest.mark.workers
def test_a_class_of_a_notebook_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workers are not forked: they do not have what was typed into the parent."""
    monkeypatch.setattr(sys.modules["__main__"], "Gone", Gone, raising=False)
    monkeypatch.setattr(Gone, "__module__", "__main__")
    if multiprocessing.get_start_method() == "fork":
        assert list(loader(Gone(), range(3), 2)) == [0, 1, 2]
        return
    with pytest.raises(DataError, match=REASON) as caught, deaths_explained():
        list(loader(Gone(), range(3), 2))
    assert "\n" not in str(caught.value)
