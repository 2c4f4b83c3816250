"""A GPU that is not there: tensors that say `cuda:0`, and are computed on the CPU.

Code under test runs unchanged, with real numbers, and what would go wrong on a GPU goes wrong here:

- an operation on tensors of both devices raises RuntimeError, as do a CPU's generator for a GPU's
  numbers, `.numpy()` of a GPU's tensor, and a generator that is asked for a CPU's state;
- every wait of the host for the GPU is noted with the line that causes it: `.item()`, `bool()`,
  `.tolist()`, copies to the host and from unpinned or pinned memory that are not asynchronous,
  shapes that depend on values (`nonzero`, masks as indices, `unique`), errors that are checked on
  the host (`torch.linalg`), and `synchronize()`;
- with `float64` false, as on Apple's GPU, a tensor in float64 raises TypeError.

It is PyTorch's FakeTensorMode in that CUDA is never initialized; but its fake tensors have no
values, and most of what runs on the host beside a step needs some.

What it cannot see: the kernels of a GPU, their rounding, and whether a back end takes certain
tensors (attention is always the plain form, and the variable-length one is computed here image by
image); streams, and so any race between them; memory; the cost of copies from pageable memory,
which wait for the GPU from 64 KiB on even if asynchronous; several GPUs; compiled code and CUDA
graphs; waits within PyTorch's C++ that reach no operator.
"""

import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

OWN = ("/stand_in.py", "/a_gpu_there.py")
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
# the host must know a value, or how many there are, before it can go on
WAITS = {
    "_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique", "_unique2", "bincount",
    "unique_dim", "unique_consecutive", "unique_dim_consecutive", "_linalg_eigh", "linalg_eig",
    "_linalg_svd", "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "histc",
}  # fmt: skip
STAGED = 2**16  # bytes that CUDA copies from any memory of the host without waiting
COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}


Generator = torch.Generator


class StandInTensor(Tensor):
    """A tensor of the GPU that is not there."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "StandInTensor":
        if inner.dtype is torch.float64 and not StandIn.now().float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        made: StandInTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=GPU,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Tensor:
        raise AssertionError(f"{func} of a GPU's tensor, after the GPU has gone")

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, StandInTensor)
        Tensor.data.__set__(self, value)
        self.inner = value.inner

    def __deepcopy__(self, memo: dict[int, Any]) -> "StandInTensor":
        if id(self) not in memo:
            assert self.is_leaf
            with torch.no_grad():
                made = StandInTensor(self.inner.clone())
            made.requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                made._is_param = True
            memo[id(self)] = made
        return memo[id(self)]

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def record_stream(self, stream: Any) -> None:
        pass

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __repr__(self, **_: Any) -> str:
        return f"StandInTensor({self.inner!r})"


class StandInGenerator(Generator):
    """A generator of either device; a GPU's has a state of 16 bytes: its seed and an offset."""

    where: torch.device
    offset: int

    def __new__(cls, device: Any = "cpu") -> "StandInGenerator":
        made: StandInGenerator = super().__new__(cls)
        made.where, made.offset = torch.device(device), 0
        if made.where.type == "cuda":
            made.where = GPU
            StandIn.now().generators[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        return self.where

    def get_state(self) -> Tensor:
        if self.where.type == "cpu":
            return super().get_state()
        return torch.frombuffer(
            bytearray(struct.pack("qq", self.initial_seed(), self.offset)), dtype=torch.uint8
        )


class StandIn(FakeTensorMode):
    """The mode that computes; `waits` has a line for each wait of the host for the GPU."""

    current: "StandIn | None" = None

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        self.refusing = False
        self.float64 = True
        self.generators: dict[int, StandInGenerator] = {}
        self.pinned: list[Tensor] = []  # kept, so that no other has the same memory

    @property
    def avoid_device_init(self) -> bool:
        return True

    @classmethod
    def now(cls) -> "StandIn":
        """Return the stand-in that is in use."""
        if cls.current is None:
            raise RuntimeError("Torch not compiled with CUDA enabled")
        return cls.current

    def wait(self, reason: str) -> None:
        """Note that the host waits, and by which line of the package or of a test."""
        self.waits.append(f"{reason} at {_place()}")
        if self.refusing:
            raise RuntimeError(f"called a synchronizing CUDA operation: {self.waits[-1]}")

    def refuse_waits(self, how: str) -> None:
        """Raise an error for a wait (error), or not (default)."""
        self.refusing = how == "error"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        flat = list(_leaves((args, kwargs.values())))
        given = [each for each in flat if isinstance(each, Tensor)]
        there = any(isinstance(each, StandInTensor) for each in given)
        target = _target(kwargs, there)
        self._check(name, func, args, kwargs, flat, target)
        if name in ("is_pinned", "_pin_memory", "pin_memory") or kwargs.get("pin_memory"):
            return self._pin(name, func, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        before = [each.inner.shape for each in given if isinstance(each, StandInTensor)]
        with _disable_current_modes():
            result: Any = func(
                *_mapped(args, _inner), **{n: _mapped(v, _inner) for n, v in kwargs.items()}
            )
            if name == "_to_copy" and result is _inner(args[0]):
                result = result.clone()
        after = [each.inner.shape for each in given if isinstance(each, StandInTensor)]
        assert before == after, f"{func} changes a shape in place, which this cannot follow"
        if func._schema.is_mutable:
            return _same(func, args, kwargs, result, target)
        return _mapped(result, lambda each: _put(each, target))

    def _check(
        self, name: str, func: Any, args: Any, kwargs: Any, flat: list[Any], target: torch.device
    ) -> None:
        """Refuse what a GPU would refuse, and note what it would wait for."""
        given = [each for each in flat if isinstance(each, Tensor)]
        there = [each for each in given if isinstance(each, StandInTensor)]
        for each in flat:
            if isinstance(each, Generator):
                own = self.generators.get(each._cdata)
                if own is not None:
                    own.offset += 4
                if (own is not None) != (target.type == "cuda"):
                    raise RuntimeError(f"{name}: a generator of the wrong device for {target}")
        if name in COPIES:
            self._check_copy(name, args, kwargs, target)
            return
        if not there:
            return
        here = [each for each in given if not isinstance(each, StandInTensor) and each.ndim]
        if name in INDEXED:
            self._check_indices(name, args)
            here = [each for each in here if all(each is not index for index in args[1])]
        if here:
            shapes = [tuple(each.shape) for each in here]
            raise RuntimeError(f"{name}: tensors on different devices, cuda:0 and cpu {shapes}")
        if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.wait(name)

    def _check_copy(self, name: str, args: Any, kwargs: Any, target: torch.device) -> None:
        if name == "_to_copy":
            pairs = [(None, args[0])]
        else:
            pairs = [(args[0], args[1])] if name == "copy_" else list(zip(*args[:2], strict=True))
        later = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        for into, source in pairs:
            to = target if into is None else into.device
            if {to.type, source.device.type} != {"cpu", "cuda"}:
                continue
            host = source if to.type == "cuda" else into  # a new one is pinned, if asynchronous
            pinned = host is None or self.is_pinned(host)
            waits = to.type == "cpu" or source.nbytes > STAGED
            if not later or (waits and not pinned):
                way = "to" if to.type == "cuda" else "from"
                self.wait(f"copy of {tuple(source.shape)} {way} the GPU")

    def _check_indices(self, name: str, args: Any) -> None:
        for index in args[1]:
            if index is None:
                continue
            if not isinstance(index, StandInTensor):
                self.wait("indices of the host")
            elif index.dtype in (torch.bool, torch.uint8):
                self.wait("a mask as index")

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a tensor of the host was made in pinned memory."""
        own = tensor.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == own for each in self.pinned)

    def _pin(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name == "is_pinned":
            return self.is_pinned(args[0])
        if name in ("_pin_memory", "pin_memory"):
            assert not isinstance(args[0], StandInTensor), "a GPU's tensor cannot be pinned"
            made = args[0].clone()
        else:
            with _disable_current_modes():
                made = func(*args, **(kwargs | {"pin_memory": False}))
        self.pinned.append(made)
        return made


def _target(kwargs: dict[str, Any], there: bool) -> torch.device:
    """Return where the result of an operation is."""
    if kwargs.get("device") is None:
        return GPU if there else CPU
    return torch.device(kwargs["device"])


def _leaves(value: Any) -> Iterator[Any]:
    """Return what stands in lists of lists."""
    for each in value:
        if isinstance(each, list | tuple) or type(each) is _VALUES:
            yield from _leaves(each)
        else:
            yield each


_VALUES = type({}.values())


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(each, change) for each in value)
    return change(value)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, StandInTensor) else value


def _put(value: Any, target: torch.device) -> Any:
    return StandInTensor(value) if isinstance(value, Tensor) and target.type == "cuda" else value


def _same(func: Any, args: Any, kwargs: Any, result: Any, target: torch.device) -> Any:
    """Return the very tensors that an operation has changed, where it returns them."""
    written = [
        kwargs.get(each.name, args[place] if place < len(args) else None)
        for place, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    returns = func._schema.returns
    if not returns:
        return None
    parts = result if len(returns) > 1 else (result,)
    changed = iter(written)
    found = tuple(
        next(changed)
        if declared.alias_info is not None and declared.alias_info.is_write
        else _mapped(part, lambda each: _put(each, target))
        for declared, part in zip(returns, parts, strict=True)
    )
    return found if len(returns) > 1 else found[0]


def _place() -> str:
    """Return the innermost line outside PyTorch and this file."""
    for frame in reversed(traceback.extract_stack()):
        here = "site-packages" in frame.filename or frame.filename.endswith(OWN)
        if not here:
            parts = frame.filename.split("/src/")[-1].split("/tests/")[-1]
            return f"{parts}:{frame.lineno}: {frame.line}"
    return "?"
