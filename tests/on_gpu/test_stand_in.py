"""The GPU that is not there finds what it is for."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from on_gpu.a_gpu_there import a_gpu, no_wait
from on_gpu.stand_in import StandIn

Fault = Callable[[Tensor], object]
MIXED: dict[str, Fault] = {
    "a sum": lambda x: x + torch.ones(3),
    "a product": lambda x: x[None] @ torch.ones(3, 3),
    "a join": lambda x: torch.cat([x, torch.ones(3)]),
    "rows": lambda x: x.index_select(0, torch.tensor([0])),
    "a host's generator": lambda x: x.uniform_(generator=torch.Generator()),
    "a GPU's generator": lambda x: torch.rand(3, generator=torch.Generator("cuda")),
    "a norm": lambda x: nn.LayerNorm(3)(x),
}
WAITS: dict[str, Fault] = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x.any()),
    "tolist": lambda x: x.tolist(),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: torch.ones(3).to("cuda"),
    "made of a list": lambda x: torch.tensor([1.0], device="cuda"),
    "into a host's": lambda x: torch.empty(3).copy_(x, non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "a mask as index": lambda x: x[x > 0],
    "values at a mask": lambda x: x.index_put_((x > 0,), torch.ones((), device="cuda")),
    "a host's index": lambda x: x[torch.tensor([0, 1])],
    "a list as index": lambda x: x[[0, 1]],
    "unique": lambda x: x.unique(),
    "repeats": lambda x: x.repeat_interleave(torch.arange(3, device="cuda")),
    "eigenvalues": lambda x: torch.linalg.eigh(x.outer(x)),
    "synchronize": lambda x: torch.cuda.synchronize(),
}
NO_WAITS: dict[str, Fault] = {
    "from pinned memory": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "into pinned memory": lambda x: torch.empty(3, pin_memory=True).copy_(x, non_blocking=True),
    "a host's number": lambda x: x * torch.tensor(0.5),
    "one row": lambda x: x[1],
    "a mask as factor": lambda x: torch.where(x > 0, x, 0.0),
    "known repeats": lambda x: x.repeat_interleave(torch.arange(3, device="cuda"), output_size=3),
    "a GPU's generator": lambda x: x.uniform_(generator=torch.Generator("cuda").manual_seed(1)),
    "clipping": lambda x: nn.utils.clip_grad_norm_([nn.Parameter(x)], 1.0),
}


@pytest.mark.parametrize("fault", MIXED)
def test_two_devices_do_not_mix(fault: str) -> None:
    with a_gpu(), pytest.raises(RuntimeError, match=r"different devices|wrong device"):
        MIXED[fault](torch.ones(3, device="cuda"))


@pytest.mark.parametrize("fault", WAITS)
def test_a_wait_is_noted_with_its_line(fault: str) -> None:
    with a_gpu() as gpu:
        WAITS[fault](torch.ones(3, device="cuda"))
        assert gpu.waits
        assert all("on_gpu/test_stand_in.py" in wait for wait in gpu.waits)
        with pytest.raises(AssertionError), no_wait(gpu):
            WAITS[fault](torch.ones(3, device="cuda"))


@pytest.mark.parametrize("work", NO_WAITS)
def test_what_does_not_wait_is_not_noted(work: str) -> None:
    with a_gpu() as gpu, no_wait(gpu):
        NO_WAITS[work](torch.ones(3, device="cuda"))


def test_what_cuda_refuses_is_refused() -> None:
    with a_gpu():
        there = torch.ones(3, device="cuda")
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            there.numpy()
        generator = torch.Generator("cuda").manual_seed(7)
        before = generator.get_state()
        assert len(before) == 16
        torch.rand(3, generator=generator, device="cuda")
        assert not torch.equal(generator.get_state(), before)
    with pytest.raises(AssertionError, match="after the GPU has gone"):
        there + 1


class _PlannedError(Exception):
    """Of a test."""


def _fail(*_: object) -> Any:
    raise _PlannedError


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _backward(x: Tensor) -> None:
    x.requires_grad_().register_hook(_fail)
    x.sum().backward()


def _operator(x: Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        StandIn.now().refuse_waits("error")
        x.sum().item()


def _compiled(x: Tensor) -> None:
    torch.compile(lambda y: y + 1, backend=_fail)(torch.ones(3))


ENDS: dict[str, Fault] = {
    "well": lambda x: x + 1,
    "in a test": _fail,
    "in a pass back": _backward,
    "in an operator": _operator,
    "in a compiler": _compiled,
    "by the user": _interrupt,
}


def _of_pytorch() -> list[Any]:
    """What the stand-in changes; a build with CUDA names an accelerator that is not there."""
    own = [torch.Generator, torch.autograd._engine_run_backward, torch.backends.cudnn.enabled]
    own += [torch.accelerator.current_accelerator(), _get_current_dispatch_mode_stack()]
    return [*own, torch.is_grad_enabled(), torch.is_inference_mode_enabled()]


@pytest.mark.parametrize("end", ENDS)
def test_pytorch_is_left_as_it_was(end: str) -> None:
    """However a test with the GPU ends."""
    before = _of_pytorch()
    with suppress(_PlannedError, RuntimeError, KeyboardInterrupt), a_gpu():
        ENDS[end](torch.ones(3, device="cuda"))
        assert end == "well"
    assert _of_pytorch() == before
    assert StandIn.current is None
    assert not torch.cuda.is_available()
    torch.ones(3, requires_grad=True).sum().backward()
    torch._dynamo.reset()
    compiled = torch.compile(lambda y: y + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
