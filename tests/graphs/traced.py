"""Graphs that are traced once: PyTorch's exporter takes seconds for the smallest model."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vitlab.graphs.complete import Traceable
    from vitlab.models.model import Model


@pytest.fixture(scope="session")
def traced_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hand out copies of one graph for one model in one form; every file is still checked.

    Workers of pytest-xdist share them.
    """
    import onnx
    from filelock import FileLock

    from vitlab.graphs import onnx_file
    from vitlab.weights.identity import fingerprint

    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if folder.name.startswith("popen-") else folder) / "graphs"
    folder.mkdir(exist_ok=True)
    trace = onnx_file.traced

    def traced(model: "Model", form: "Traceable") -> tuple[Any, list[str]]:
        several, unlike = model.provenance.get("multi_label"), model.unlike
        parts = form.input, form.outputs + form.inner, str(form.free), tuple(form.example.shape)
        key = repr((fingerprint(model), model.temperature, several, unlike is None, *parts))
        file: Path = folder / hashlib.sha256(key.encode()).hexdigest()
        with FileLock(f"{file}.lock"):
            if not file.exists():
                proto, blocks = trace(model, form)
                file.with_suffix(".json").write_text(json.dumps(blocks))
                file.write_bytes(proto.SerializeToString())
        return onnx.load(file), json.loads(file.with_suffix(".json").read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "traced", traced)
        yield
