"""A model as a package of PyTorch, compiled by AOTInductor: programs need PyTorch alone."""

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import PackageError, WeightsError
from vitlab.files import staged_file, vanishing_folder
from vitlab.graphs.about import about
from vitlab.graphs.agreement import UNITS, agree, wanted
from vitlab.graphs.complete import Traceable, dynamic_shapes, traceable
from vitlab.graphs.onnx_file import quiet, unexported
from vitlab.graphs.targets import COMPILER
from vitlab.models.model import Model
from vitlab.progress import named_if_slow

X86 = ("x86_64", "AMD64")
PORTABLE = "x86-64-v3"  # every x86 processor with AVX2: Intel's since 2013, AMD's since 2015
BITS = 256  # of its vectors
DOUBT = 2e-3  # that probabilities near 1 are compared in: float32 has them to 6e-8
SOURCES = (".cpp", ".h")  # their comments hold paths of the machine that compiled them


def write(model: Model, file: Path, bare: bool = False) -> dict[str, Any]:
    """Write a package that `torch._inductor.aoti_load_package` runs, and check it.

    Its kernels use as many threads as the program that runs them allows PyTorch.

    Args:
        model: not fused
        file: new
        bare: normalized images to logits, without preprocessing

    Returns:
        `processor` and `torch` (the processors, and the version of PyTorch, it was compiled for),
        `inputs` and `outputs` (name and shape of each), and what `agree` returns.

    Raises:
        OptionError: preprocessing that cannot be part of a graph.
        WeightsError: the model cannot be exported, or the package gives other numbers than the
            model; nothing is written.
        PackageError: the C++ compiler fails.
        DiskError: the file cannot be written.
    """
    form = traceable(model, bare)
    shape = [form.free.get(axis, size) for axis, size in enumerate(form.example.shape)]
    made_for = {
        "processor": PORTABLE if platform.machine() in X86 else platform.machine(),
        "torch": torch.__version__,
    }
    facts = about(model) | made_for | {"input": form.input, "shape": shape}
    with vanishing_folder() as folder:
        draft = folder / file.name
        with named_if_slow("compiling"):
            _compile(model, form, json.dumps(facts), draft)
        with named_if_slow("checking"):
            found = _check(draft, model, bare, form.outputs)
        with staged_file(file) as place:
            shutil.copyfile(draft, place)
    outputs: dict[str, list[Any]] = {key: ["batch"] for key in form.outputs}
    outputs[form.outputs[0]] = ["batch", model.config.classes or model.config.features]
    return made_for | {"inputs": {form.input: shape}, "outputs": outputs} | found


def _check(file: Path, model: Model, bare: bool, names: tuple[str, ...]) -> dict[str, Any]:
    """Compare a package that was just written with its model; it runs, as a program would do it."""
    with quiet():
        package = torch._inductor.aoti_load_package(str(file))

    def run(images: NDArray[Any]) -> dict[str, NDArray[Any]]:
        found = package(torch.from_numpy(images))
        answers = [each.numpy() for each in ([found] if isinstance(found, Tensor) else found)]
        return _with_doubt(dict(zip(names, answers, strict=True)))

    def compute_reference(ready: Tensor) -> dict[str, NDArray[Any]]:
        return _with_doubt(wanted(model, ready, bare))

    units = UNITS | {"doubt": np.full((), DOUBT)}
    return agree(
        run, model, bare=bare, where="PyTorch's package", own=compute_reference, units=units
    )


def _with_doubt(found: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add how far probabilities are from 0 or 1: near 1 they hardly differ among themselves."""
    if "probabilities" not in found:
        return found
    chances = found["probabilities"]
    return found | {"doubt": np.minimum(chances, 1 - chances)}


def _compile(model: Model, form: Traceable, facts: str, file: Path) -> None:
    """Trace and compile into a file; PyTorch's cache lies beside it, and goes with its folder."""
    from torch._inductor.package.package import package_aoti
    from torch._inductor.utils import fresh_cache

    failure = None
    with quiet(), torch.no_grad(), fresh_cache(dir=str(file.parent)):
        try:
            shapes = dynamic_shapes(form.free)
            program = torch.export.export(form.module, (form.example,), dynamic_shapes=shapes)
            made = torch._inductor.aot_compile(
                program.module(check_guards=False), (form.example,), options=_options(facts)
            )
            package_aoti(str(file), {"model": _portable(made)})
        except Exception as error:  # of many kinds, with pages of text
            failure = _explained(error, model)
    if failure is not None:
        raise failure


def _explained(error: Exception, model: Model) -> PackageError | WeightsError:
    """Return one line about what PyTorch or the compiler said."""
    from torch._inductor.exc import CppCompileError

    inner = getattr(error, "inner_exception", error)
    if isinstance(inner, CppCompileError):
        lines = [line for line in inner.output.splitlines() if "error" in line.lower()]
        reason = lines[0].strip() if lines else "without a message"
        return PackageError(f"the C++ compiler failed: {reason}; {COMPILER}")
    return unexported(model, inner)


def _options(facts: str) -> dict[str, Any]:
    """Return how to compile: for every processor of the family, without traces of this machine."""
    options: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.metadata": {"vitlab": facts},
        "aot_inductor.enable_line_tables": False,  # they hold paths
        "aot_inductor.precompile_headers": False,  # worth it for many compilations only
        "cpp.dynamic_threads": True,
    }
    if platform.machine() in X86:
        options |= {"cpp.march": PORTABLE, "cpp.simdlen": BITS, "cpp.vec_isa_ok": True}
    return options


def _portable(made: Any) -> list[Any]:
    """Return the files that a package needs, of those that the compiler made.

    PyTorch warns of every processor with other instructions than those noted, be they more. Where
    the code runs on all of a family, the note is taken out; so is the name of the folder.
    """
    kept = [str(each) for each in made if not str(each).endswith(SOURCES)]
    for each in kept:
        if each.endswith("_metadata.json") and platform.machine() in X86:
            notes = json.loads(Path(each).read_text("utf-8"))
            notes.pop("AOTI_CPU_ISA", None)
            Path(each).write_text(json.dumps(notes), "utf-8")
    place = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "").encode()  # where it was compiled
    for each in kept if place else ():
        file = Path(each)
        file.write_bytes(file.read_bytes().replace(place, b"/" * len(place)))
    return kept
