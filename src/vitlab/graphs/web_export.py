"""A folder with a page that runs an exported model in the browser, also without a server.

A page opened from a disk may load scripts that lie beside it and nothing else, so the model and the
runtime are scripts: base64 text in parts of a few megabytes, the runtime compressed.
"""

import base64
import gzip
import importlib.resources
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.files import staged_folder, vanishing_folder
from vitlab.graphs import onnx_file
from vitlab.graphs.about import about
from vitlab.models.model import Model
from vitlab.packages import silent_onnxruntime, version_of
from vitlab.pages.assets import WEB, asset
from vitlab.pages.runtime import RUNTIME, runtime_files
from vitlab.weights.containers.parts import some

PART = 6 * 2**20  # bytes of the model in each part
MOST_BYTES = 2**30  # of a model: a page has 2 to 4 GB, and holds it twice at first


def write(model: Model, folder: Path, bare: bool = False) -> dict[str, Any]:
    """Write a model as a page, and check its graph.

    Args:
        model: not fused
        folder: new
        bare: not for pages

    Returns:
        `page`, `files`, `bytes` (what a browser downloads), and what the ONNX file's check returns.

    Raises:
        OptionError: no classifier, too large for a browser, `bare`, or preprocessing that cannot
            be part of a graph.
        WeightsError: the model cannot be exported; nothing is written.
        PackageError: ONNX Runtime for browsers is not here and cannot be fetched.
        DiskError: the folder cannot be written.
    """
    _check_shown(model, bare)
    runtime = runtime_files()
    with vanishing_folder() as scratch:
        file = scratch / "model.onnx"
        try:
            found = onnx_file.write(model, file)
        except OptionError as error:
            raise OptionError(f"{error}; a page cannot: use to='onnx' (--to onnx)") from error
        return write_page(file, about(model), folder, runtime) | found


def _check_shown(model: Model, bare: bool) -> None:
    """Refuse what a page cannot show.

    Raises:
        OptionError: the line says why.
    """
    config = model.config
    if bare:
        raise OptionError("bare is for ONNX files: a page prepares the photos by itself")
    if not config.classes:
        raise OptionError(
            f"{config.name} has no classifier, and the page shows classes: train one first with "
            f"vitlab finetune DATA --from {shlex.quote(model.source or 'WEIGHTS')}, or export with "
            "to='onnx' (--to onnx)"
        )
    check_size(sum(tensor.nbytes for tensor in model.state_dict().values()))


def check_size(size: int) -> None:
    """Refuse a model of so many bytes.

    Raises:
        OptionError: it is too large for a browser.
    """
    if size > MOST_BYTES:
        raise OptionError(
            f"the model has {size / 1e6:,.0f} MB, and a browser can hold {MOST_BYTES / 1e6:,.0f} "
            "MB: export a smaller one, or open the page of vitlab serve"
        )


def write_page(
    file: Path, card: Mapping[str, Any], folder: Path, runtime: Sequence[bytes]
) -> dict[str, Any]:
    """Write the page of an ONNX file that takes raw pixels.

    Args:
        file: the graph
        card: its metadata
        folder: new
        runtime: the files of ONNX Runtime Web, as `runtime_files` returns them

    Returns:
        `page`, `files` and `bytes`.

    Raises:
        DiskError: the folder cannot be written.
    """
    with staged_folder(folder) as draft:
        for name in WEB:
            (draft / name).write_bytes(asset(name))
        (draft / "index.html").write_bytes(asset("web.html"))
        (draft / "licenses.txt").write_text(licenses(), encoding="utf-8")
        parts = list(write_parts(file, runtime, draft))
        facts = facts_of(card) | {"size": file.stat().st_size, "parts": parts}
        facts["bytes"] = sum(each["bytes"] for each in parts)
        facts["bytes"] += sum((draft / name).stat().st_size for name in (*WEB, "index.html"))
        _write_script(draft / "facts.js", "vitlab.facts", facts)
        files = sorted(each.name for each in draft.iterdir())
    return {"page": str(folder / "index.html"), "files": files, "bytes": facts["bytes"]}


def write_parts(file: Path, runtime: Sequence[bytes], folder: Path) -> Iterator[dict[str, Any]]:
    """Write the runtime and the model as scripts; yield the name and size of each."""
    texts = [base64.b64encode(gzip.compress(each, mtime=0)).decode() for each in runtime]
    yield _write_script(folder / "runtime.js", "vitlab.runtime", texts)
    count = -(-file.stat().st_size // PART)
    with file.open("rb") as stream:
        for number in range(1, count + 1):
            text = base64.b64encode(stream.read(PART)).decode()
            script = folder / f"model-{number:03d}.js"
            script.write_text(f'vitlab.receive("{text}");\n', encoding="ascii")
            yield {"name": script.name, "bytes": script.stat().st_size}


def _write_script(script: Path, name: str, value: Any) -> dict[str, Any]:
    """Write a script that sets a variable to JSON, ASCII alone so that nothing can misread it."""
    script.write_text(f"{name} = {json.dumps(value)};\n", encoding="ascii")
    return {"name": script.name, "bytes": script.stat().st_size}


def facts_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows and needs to know of a model."""
    classes, several = card["classes"], card["multi_label"]
    return {
        "title": f"{card['model']}: {len(classes):,} {'labels' if several else 'classes'}",
        "about": f"Tells apart: {some(classes)}",
        **{name: card[name] for name in ("model", "classes", "channels", "image_size", "crop")},
        "several": several,
        "thresholds": card.get("thresholds", []),
        "license": card.get("license", ""),
        "version": version_of("vitlab"),
        "runtime": RUNTIME.version,
    }


def licenses() -> str:
    """Return the license of the runtime, and the notices of what it contains."""
    folder = importlib.resources.files(silent_onnxruntime())
    texts = [(folder / name).read_text("utf-8") for name in ("LICENSE", "ThirdPartyNotices.txt")]
    return f"{RUNTIME.name} {RUNTIME.version}\n\n" + "\n\n".join(texts)
