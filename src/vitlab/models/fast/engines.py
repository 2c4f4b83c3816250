"""Engines for inference: PyTorch's plain and packed forms, torch.compile, ONNX Runtime, OpenVINO.

An engine makes a copy of a model that answers the same calls. Those outside PyTorch compute a
Vision Transformer's tokens from images of its usual size; whatever else is asked is computed by the
copy itself, in PyTorch.
"""

import copy
import functools
import importlib.util
import io
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitlab.models.fast.packed_form import can_pack, packed
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.packages import silent_onnxruntime
from vitlab.precision import Engine

LARGEST = 2**31 - 2**20  # bytes of an ONNX graph in memory: the format's own limit
FP32, BF16 = 1e-4, 0.05  # how far features and tokens may be from the plain model's: relative
RUNTIMES: tuple[Engine, ...] = ("onnxruntime", "openvino")
OWN = ("vitlab", "uvicorn")  # loggers that are heard while an engine is made

Run = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) -> tokens (B, N, D) or the leading ones, fp32 on the CPU."""


def available(model: Model, where: torch.device, dtype: torch.dtype) -> list[Engine]:
    """Return the engines that can compute a model on a device in a precision, fp32 or bf16.

    The plain form has no bf16 of its own. A compiler is tried where oneDNN packs no weights: on
    processors where it does, compiled models were slower in every case (docs/performance.md).
    """
    found: list[Engine] = ["plain"] if dtype is torch.float32 else []
    found.append("packed")
    if not isinstance(model, VisionTransformer):
        return found
    if where.type == "cuda" or (where.type == "cpu" and not can_pack(dtype) and has_compiler()):
        found.append("compiled")
    if where.type == "cpu":
        found += [name for name in RUNTIMES if is_installed(name, dtype)]
    return found


def is_installed(name: Engine, dtype: torch.dtype) -> bool:
    """Return whether a runtime and what it needs is there; ONNX Runtime has no bf16 on CPUs."""
    needed = ("openvino",) if name == "openvino" else ("onnxruntime", "onnx", "onnxscript")
    there = all(importlib.util.find_spec(package) is not None for package in needed)
    return there and (name == "openvino" or dtype is torch.float32)


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, which torch.compile needs on a CPU."""
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))


def made(engine: Engine, model: Model, where: torch.device, dtype: torch.dtype) -> Model:
    """Return a copy of a model that an engine computes.

    Raises:
        Exception: of any kind, where the engine cannot do it.
    """
    if engine == "plain":
        form = copy.deepcopy(model).to(where).eval().requires_grad_(False)
    else:
        form = packed(model, where, dtype, pack=engine not in RUNTIMES)
    form.engine = engine
    if engine == "compiled" and isinstance(form, VisionTransformer):
        replace_encoder(form, Compiled(form))
    elif engine in RUNTIMES and isinstance(form, VisionTransformer):
        exact = packed(model, where, torch.float32, pack=False) if form.computes == "bf16" else form
        assert isinstance(exact, VisionTransformer)
        graphs = Graphs(form, exact, engine, dtype)
        looked = None if form.unlike is None else form.unlike.layer
        if graphs.graph(form.head.leading, looked) is None:  # what most callers ask for
            raise ValueError(f"{engine} computes other tokens than PyTorch")
        replace_encoder(form, graphs)
    return form


def tokens_of(
    model: VisionTransformer,
    images: Tensor | Packed,
    extra: Tensor | None = None,
    leading: int | None = None,
    inner: int | None = None,
) -> Tensor:
    """Compute what `VisionTransformer.encode` does; `inner` of a layer is one more token."""
    kind = type(model)
    if inner is None:
        return kind.encode(model, images, extra, leading)
    assert isinstance(images, Tensor)
    tokens, found = kind.encode_with(model, images, inner, leading)
    return torch.cat([tokens, found[:, None].to(tokens.dtype)], 1)


def replace_encoder(form: VisionTransformer, encode: "Compiled | Graphs") -> None:
    """Let something else compute a model's tokens."""
    form.encode = encode  # type: ignore[method-assign]
    form.encode_with = EncodeWith(encode)  # type: ignore[method-assign]


@dataclass(frozen=True)
class EncodeWith:
    """What `VisionTransformer.encode_with` does, of what an engine computes."""

    encode: "Compiled | Graphs"

    def __call__(
        self, images: Tensor, layer: int, leading: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute tokens, and `inner` of a layer."""
        tokens = self.encode(images, None, leading, layer)
        return tokens[:, :-1], tokens[:, -1]


@dataclass
class Compiled:
    """A model's encoder by torch.compile, on a GPU with CUDA graphs where batches repeat.

    Attributes:
        form: the model
        run: what was compiled, at the first call in each process
    """

    form: VisionTransformer
    run: Callable[..., Tensor] | None = None

    def __call__(
        self,
        images: Tensor | Packed,
        extra: Tensor | None = None,
        leading: int | None = None,
        inner: int | None = None,
    ) -> Tensor:
        """Compute what `tokens_of` does."""
        on_gpu = next(self.form.parameters()).is_cuda
        if self.run is None:
            plain = MethodType(tokens_of, self.form)
            self.run = torch.compile(plain, mode="reduce-overhead" if on_gpu else None)
        tokens = self.run(images, extra, leading, inner)
        return tokens.clone() if on_gpu else tokens  # the next call overwrites it

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what this process compiled."""
        return vars(self) | {"run": None}


@dataclass
class Graphs:
    """A model's tokens by another runtime: one graph for all of them, one for the leading ones.

    A graph is built when it is needed first, and kept only if its tokens agree with PyTorch's.

    Attributes:
        form: what computes other sizes, packed images and further tokens
        exact: the same in fp32, which the graphs are made of and compared with
        engine: onnxruntime or openvino
        dtype: of the products
        built: the graphs by the number of leading tokens, and the layer of one more token;
            None where PyTorch computes instead
    """

    form: VisionTransformer
    exact: VisionTransformer
    engine: Engine
    dtype: torch.dtype
    built: dict[tuple[int | None, int | None], Run | None] = field(default_factory=dict)

    def __call__(
        self,
        images: Tensor | Packed,
        extra: Tensor | None = None,
        leading: int | None = None,
        inner: int | None = None,
    ) -> Tensor:
        """Compute what `tokens_of` does."""
        config = self.form.config
        if (
            isinstance(images, Tensor)
            and extra is None
            and images.dtype is torch.float32
            and images.shape[1:] == (config.channels, *config.size)
            and len(images)
            and (run := self.graph(leading, inner))
        ):
            return run(images)
        return tokens_of(self.form, images, extra, leading, inner)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the graphs, which another process builds for itself."""
        return vars(self) | {"built": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with the same graphs, which never change."""
        form, exact = copy.deepcopy((self.form, self.exact), memo)
        return replace(self, form=form, exact=exact, built=dict(self.built))

    def graph(self, leading: int | None, inner: int | None = None) -> Run | None:
        """Return the graph of all tokens, or of the leading ones; None if it is none or wrong."""
        key = leading, inner
        if key not in self.built:
            images = patterns(self.form, 2)
            tokens = Tokens(self.exact, leading, inner)
            self.built[key] = None
            with quiet(), torch.inference_mode(), suppress(Exception):  # of any kind
                run = BUILDERS[self.engine](tokens, images, self.dtype)
                found = run(images)
                exact = tokens(images)
                parts = (slice(None),) if inner is None else (slice(-1), slice(-1, None))
                if all(near(found[:, each], exact[:, each], self.dtype) for each in parts):
                    self.built[key] = run
        return self.built[key]


class Tokens(nn.Module):
    """The part of a model that a graph computes: images to tokens, as `tokens_of` has them."""

    def __init__(
        self, model: VisionTransformer, leading: int | None, inner: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.leading = leading
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, N, D)."""
        return tokens_of(self.model, images, None, self.leading, self.inner)


class OpenVINO:
    """A graph compiled by OpenVINO for the CPU, for any batch.

    It is handed over as it was traced: OpenVINO's own converter would send usage data.
    """

    def __init__(self, tokens: Tokens, images: Tensor, dtype: torch.dtype) -> None:
        openvino = importlib.import_module("openvino")
        frontend = importlib.import_module("openvino.frontend").FrontEndManager()
        decoders = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
        reader = frontend.load_by_framework("pytorch")
        traced: Any = torch.jit.trace(tokens, (images,), check_trace=False)
        decoder = decoders.TorchScriptPythonDecoder(
            traced, example_input=(images,), shared_memory=False
        )
        graph = reader.convert(reader.load(decoder))
        graph.reshape([-1, *images.shape[1:]])
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if dtype is torch.bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        self._graph = core().compile_model(graph, "CPU", settings)
        used = self._graph.get_property("INFERENCE_PRECISION_HINT")
        if (used == openvino.Type.bf16) != (dtype is torch.bfloat16):
            raise ValueError(f"OpenVINO computes in {used} here")
        self._own = threading.local()  # a request belongs to one thread

    def __call__(self, images: Tensor) -> Tensor:
        """Compute tokens."""
        if not hasattr(self._own, "request"):
            self._own.request = self._graph.create_infer_request()
        request = self._own.request
        request.infer([images.contiguous().numpy()], share_inputs=True)
        return torch.from_numpy(request.get_output_tensor(0).data.copy())


@functools.cache
def core() -> Any:
    """Return OpenVINO for the rest of the process.

    On a CPU it gives the thread a stack for signals. Freed by another thread, that stack is missing
    when the next signal arrives, and the process dies.
    """
    return importlib.import_module("openvino").Core()


class ONNXRuntime:
    """A graph run by ONNX Runtime on the CPU, for any batch."""

    def __init__(self, tokens: Tokens, images: Tensor, dtype: torch.dtype) -> None:
        onnxruntime = silent_onnxruntime()
        if sum(weight.nbytes for weight in tokens.state_dict().values()) > LARGEST:
            raise ValueError("too large for one ONNX graph")
        sizes = ({0: torch.export.Dim("batch", min=1, max=2**20)},)
        program: Any = torch.onnx.export(
            tokens, (images,), dynamo=True, dynamic_shapes=sizes, verbose=False
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        # threads that spin while they wait slow down whatever else the process computes
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        data = program.model_proto.SerializeToString()
        self._session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def __call__(self, images: Tensor) -> Tensor:
        """Compute tokens."""
        found = self._session.run(None, {self._input: images.contiguous().numpy()})
        return torch.from_numpy(found[0])


BUILDERS: dict[Engine, Callable[[Tokens, Tensor, torch.dtype], Run]] = {
    "onnxruntime": ONNXRuntime,
    "openvino": OpenVINO,
}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep from the user what exporters print, log and warn of; other threads are heard."""
    thread = threading.get_ident()

    def is_heard(record: logging.LogRecord) -> bool:
        is_own = record.name.partition(".")[0] in OWN
        return is_own or record.thread != thread or record.levelno > logging.WARNING

    loggers = [
        each for each in logging.root.manager.loggerDict.values() if hasattr(each, "handlers")
    ]
    handlers = {each for logger in (logging.root, *loggers) for each in logger.handlers}
    handlers |= {logging.lastResort} if logging.lastResort else set()
    for handler in handlers:
        handler.addFilter(is_heard)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_heard)


def near(got: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    """Return whether each image's values (B, …) are within the limit of a precision."""
    limit = FP32 if dtype is torch.float32 else BF16
    exact = exact.flatten(1)
    away = (got.flatten(1) - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-12)
    return bool((away <= limit).all())  # NaN is not


def patterns(model: Model, count: int) -> Tensor:
    """Return smooth random images, normalized, (count, C, H, W): the same for every call."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, model.config.channels, 8, 8, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=model.config.size, mode="bilinear")
    return smooth + 0.2 * torch.randn(smooth.shape, generator=generator)
