"""What PyTorch is told of a GPU that is not there."""

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from on_gpu.stand_in import GPU, StandIn, StandInGenerator


class Event:
    """In place of CUDA's; the GPU is never behind."""

    def __init__(self, **_: Any) -> None:
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded
        StandIn.now().wait("Event.synchronize")

    def query(self) -> bool:
        return True


class Stream:
    """In place of CUDA's; everything is done in the order in which it is asked for."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device = device

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)

    def wait_event(self, event: Event) -> None:
        assert event.recorded

    def synchronize(self) -> None:
        StandIn.now().wait("Stream.synchronize")

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def make_guard() -> None:
    """Let PyTorch install what it has for GPUs that are not there; a build without CUDA does not.

    Its `_ensureCUDADeviceGuardSet` only replaces a guard that finds no GPU, so one that answers 0
    to whatever it is asked is put there first: autograd and `.to("cuda")` need to ask somebody.
    """
    # the engine counts devices once, and starts a thread for each, which forked processes lack
    torch.ones((), requires_grad=True).backward()
    registry = (ctypes.c_void_p * 2).in_dll(
        _library("c10"), "_ZN3c104impl26device_guard_impl_registryE"
    )
    if registry[1] is None:  # CUDA's; the first is the CPU's
        registry[1] = ctypes.addressof(_NOBODY)
    torch._C._ensureCUDADeviceGuardSet()
    assert registry[1] != ctypes.addressof(_NOBODY)


@contextmanager
def yes_to_all() -> Iterator[None]:
    """Within the context, PyTorch is told that there is CUDA, by answers of 1 to all it asks.

    Its engine asks, before it adds up gradients, for the current stream of an accelerator.
    """
    ask = _library("torch_cpu")._ZN2at6detail12getCUDAHooksEv
    ask.restype = ctypes.POINTER(ctypes.c_void_p)
    hooks = ask()
    real, hooks[0] = hooks[0], ctypes.addressof(_ALL_YES[1])
    try:
        yield
    finally:
        hooks[0] = real


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.so"))


def _methods(answer: int) -> tuple[Any, Any]:
    """Return the methods of a C++ object, all of which give the same answer."""
    method = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(lambda _: answer)
    return method, (ctypes.c_void_p * 256)(*[ctypes.cast(method, ctypes.c_void_p).value] * 256)


_ALL_NO, _ALL_YES = _methods(0), _methods(1)
_NOBODY = ctypes.c_void_p(ctypes.addressof(_ALL_NO[1]))


@contextmanager
def a_gpu() -> Iterator[StandIn]:
    """Within the context there is a GPU, named cuda and cuda:0."""
    make_guard()
    mode = StandIn()
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: "stand-in",
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "max_memory_allocated": lambda *_: 2**20,
        "max_memory_reserved": lambda *_: 2**20,
        "mem_get_info": lambda *_: (2**34, 2**34),
        "synchronize": lambda *_: mode.wait("synchronize"),
        "set_sync_debug_mode": mode.refuse_waits,
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "stream": lambda stream: stream,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch.accelerator, "is_available", lambda *_, **__: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: GPU)
        for check in (
            "_accelerator_graph_capture_health_check",
            "_cuda_graph_capture_health_check",
        ):
            patch.setattr(torch.optim.Optimizer, check, lambda self: None, raising=False)
        patch.setattr(torch.backends.cudnn, "enabled", False)  # whose kernels a CPU lacks
        patch.setattr(torch._C, "_InferenceMode", _no_gradients)  # whose tensors resist wrapping
        patch.setattr(torch, "Generator", StandInGenerator)
        patch.setattr(StandIn, "current", mode)
        patch.setattr(
            torch.__future__, "get_swap_module_params_on_conversion", lambda: True
        )  # a parameter of the host, which is a parameter still, becomes one of the GPU
        patch.setattr("torch.nn.attention.varlen.varlen_attn", _varlen)
        for place in (torch.autograd, torch.autograd.graph):
            patch.setattr(place, "_engine_run_backward", _run_backward)
        with mode, torch.autograd.set_multithreading_enabled(False):
            yield mode


def _no_gradients(inference: bool) -> torch.set_grad_enabled:
    return torch.set_grad_enabled(not inference)


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    with yes_to_all():
        return _ENGINE(*args, **kwargs)


_ENGINE = torch.autograd.graph._engine_run_backward


@contextmanager
def no_wait(mode: StandIn) -> Iterator[None]:
    """Within the context, the host never waits for the GPU."""
    before = len(mode.waits)
    yield
    assert mode.waits[before:] == []


def _varlen(q: Tensor, k: Tensor, v: Tensor, ends: Any, same: Any, *longest: int) -> Tensor:
    """Attend sequence by sequence, as PyTorch's kernel: (T, h, d) -> (T, h, d)."""
    limits = ends.inner.tolist()  # a kernel reads them where they are
    parts = []
    for first, last in itertools.pairwise(limits):
        own = [each[first:last].transpose(0, 1) for each in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*own).transpose(0, 1))
    return torch.cat(parts)
