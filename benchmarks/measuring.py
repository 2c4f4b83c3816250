"""What the benchmarks share: other libraries, interleaved timing, and a line about the machine."""

import importlib
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[1] / "tests"


def peer(name: str) -> Any:
    """Return an installed library; None, with the reason on stderr, if it cannot be imported.

    timm and transformers import torchvision, whose published build does not import beside every
    build of torch; `tests/oracles/peers.py` knows how to make it.
    """
    sys.path.insert(0, str(TESTS))
    try:
        importlib.import_module("oracles.peers").prepare_torchvision()
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    finally:
        sys.path.remove(str(TESTS))


def seconds(
    work: Callable[[], object], device: str, now: Callable[[], float] = time.perf_counter
) -> float:
    """Return the time of one call, the GPU's queue included."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = now()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return now() - start


def interleaved(
    works: dict[str, Callable[[], object]],
    rounds: int,
    device: str,
    *,
    warmup: int = 1,
    repeats: int = 1,
    warm: bool = False,
    now: Callable[[], float] = time.perf_counter,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Time several works in turns, so that a slow moment of the machine meets all of them.

    Every second round goes backward. Before each work are `pause` seconds of rest: the threads of
    some libraries go on spinning; with `warm` also a call that is not timed. Returns one time per
    round, the best of `repeats`.
    """
    for _ in range(warmup):
        for work in works.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in list(works) if turn % 2 else list(reversed(works)):
            time.sleep(pause)
            if warm:
                works[name]()
            each = (seconds(works[name], device, now) for _ in range(repeats))
            times[name].append(min(each))
    return times


def captured(work: Callable[[], object], device: str) -> Callable[[], object]:
    """Return a work as a CUDA graph, launched at once; on a CPU the work itself.

    Its tensors must stay where they are, and it must not wait for the GPU.
    """
    if not device.startswith("cuda"):
        return work
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # what is done once, such as choosing kernels, is not captured
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def machine(device: str) -> str:
    """Return the device, the threads and the version of torch."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    threads = torch.get_num_threads()
    return f"{name or platform.machine()}, {threads} threads, torch {torch.__version__}"
