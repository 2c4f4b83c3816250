"""Packages of PyTorch: what `vitlab.classify` says, by a program that has PyTorch alone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import environment
from made_models import noisy
from models.test_architectures import CASES, a_model
from vitlab.errors import PackageError, WeightsError
from vitlab.graphs.agreement import agree
from vitlab.models.model import Model

CLASSES = ("cat", "dog", "Känguru 🦘")
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="packages are compiled"
)


@pytest.fixture(scope="module")
def model() -> Model:
    generator, name = torch.Generator().manual_seed(1), "ViT(width=16,depth=1,heads=2,mlp=16)/8"
    chosen = {"image_size": 16, "zero_head": False, "interpolation": "bilinear", "labels": CLASSES}
    made = noisy(vitlab.create(name, 3, generator=generator, **chosen), 0.2)  # images differ
    made.provenance |= {"temperature": 1.3, "license": "mit", "source": "/home/me/secret/w.npz"}
    return made


@pytest.fixture(scope="module")
def package(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once for all tests: the longest wait of this file.

    What calls the kernels is not optimized, which halves the compiler's time.
    """
    file = tmp_path_factory.mktemp("unmentioned") / "model.pt2"
    with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        found = vitlab.export(model, file, "torch")
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 1e-6
    assert found["inputs"] == {"image": ["batch", "rows", "columns", 3]}
    assert found["outputs"] == {"probabilities": ["batch", 3]}
    assert [each.name for each in file.parent.iterdir()] == ["model.pt2"]
    return file


PROGRAM = """
import json, sys
sys.modules["vitlab"] = None  # importing it fails
import numpy as np, torch
package = torch._inductor.aoti_load_package(sys.argv[1])
images = np.load(sys.argv[2])
facts = json.loads(package.get_metadata()["vitlab"])
rows = [package(torch.from_numpy(images[name])).tolist() for name in images]
print(json.dumps({"facts": facts, "rows": rows}))
"""


@needs_compiler
@pytest.mark.slow
def test_a_program_with_pytorch_alone_gets_the_probabilities_of_classify(
    package: Path, model: Model, tmp_path: Path
) -> None:
    """Batches of 1, 2 and 7, images of any size, on two threads; and not a word on stderr."""
    sizes = [(1, 16, 16), (2, 7, 90), (7, 90, 7), (1, 33, 50), (2, 1, 1), (1, 200, 300)]
    draw = np.random.default_rng(0)
    batches = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    np.savez(tmp_path / "images.npz", *batches)
    words = [sys.executable, "-c", PROGRAM, str(package), str(tmp_path / "images.npz")]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(OMP_NUM_THREADS="2")
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    for images, rows in zip(batches, told["rows"], strict=True):
        for row, answer in zip(rows, vitlab.classify(model, [*images]), strict=True):
            for name, chance in answer.classes:
                assert abs(row[CLASSES.index(name)] - chance) < 1e-6
    facts = told["facts"]
    assert facts["classes"] == [*CLASSES]
    assert (facts["license"], facts["source"], facts["temperature"]) == ("mit", "w.npz", 1.3)
    assert (facts["input"], facts["shape"]) == ("image", ["batch", "rows", "columns", 3])
    assert facts["torch"] == torch.__version__


@needs_compiler
@pytest.mark.slow
def test_the_package_has_no_code_and_no_folder_of_its_maker(package: Path) -> None:
    with zipfile.ZipFile(package) as parts:
        assert not [name for name in parts.namelist() if name.endswith((".cpp", ".h"))]
        content = b"".join(parts.read(name) for name in parts.namelist())
    for private in ("unmentioned", "/home/me", "secret", str(Path(vitlab.__file__).parent)):
        assert private.encode() not in content


def test_without_a_compiler_that_works_the_message_says_so(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    words = r"^\.pt2 files are compiled, and there is no C\+\+ compiler.*apt install g\+\+"
    with pytest.raises(PackageError, match=words):
        vitlab.export(model, tmp_path / "a.pt2", "torch")
    compiler = tmp_path / "c++"
    compiler.write_text(FAILS)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, str(compiler)))  # read at import
    with pytest.raises(PackageError, match=r"failed: x\.h:1: fatal error: no header; install"):
        vitlab.export(model, tmp_path / "a.pt2", "torch", bare=True)
    assert [each.name for each in tmp_path.iterdir()] == ["c++"]


FAILS = """#!/bin/sh
case "$*" in *--version*) echo g++ 12.2.0; exit;; esac
echo "x.h:1: fatal error: no header" >&2
exit 1
"""


def test_other_numbers_than_the_models_are_refused(model: Model) -> None:
    def spoiled(images: Any) -> Any:
        found = model(torch.from_numpy(images)).detach().numpy()
        return {"logits": found + 0.5 * (len(images) == 7)}

    with pytest.raises(WeightsError, match=r"would differ from ViT.* by .* nothing is written"):
        agree(spoiled, model, bare=True, where="a test")


@needs_compiler
@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES)
def test_all_architectures(case: str, tmp_path: Path) -> None:
    found = vitlab.export(a_model(case), tmp_path / "a.pt2", "torch", bare=True)
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 5e-5


def test_an_interrupted_or_failed_compilation_leaves_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch keeps its cache then: it lies in a folder that goes."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for error in (KeyboardInterrupt(), RuntimeError("no compiler")):

        def fail(*given: Any, error: BaseException = error, **named: Any) -> None:
            folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            assert folder.is_relative_to(scratch)
            (folder / "kernel.cpp").write_text("x")
            raise error

        monkeypatch.setattr(torch._inductor, "aot_compile", fail)
        with pytest.raises((KeyboardInterrupt, WeightsError, PackageError)):
            vitlab.export(model, tmp_path / "model.pt2", "torch", bare=True)
        assert list(scratch.iterdir()) == []
        assert [each.name for each in tmp_path.iterdir()] == ["scratch"]
