"""The page about the service has its addresses, statuses and figures as they are."""

import io
import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

from PIL import Image
from prometheus_client import generate_latest

import vitlab
from conftest import photo
from docs.pages import ROOT
from made_heads import save_heads
from serve.fakes import FakeEngine
from serve.sockets import head, served, status, talk
from steady import PATIENCE, wait_until
from vitlab.serve.app import application
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def cells(head: str) -> list[list[str]]:
    """The rows of a table below a header."""
    table = PAGE[PAGE.index(f"| {head} |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_bounds_are_those_of_the_options() -> None:
    names = ["max_body", "max_memory", "max_pixels", "max_images", "queue", "patience", "timeout"]
    text = PAGE.partition("Every other bound is an option")[2].partition("`vitlab serve")[0]
    assert re.findall(r"\((\d+)", text) == [f"{getattr(Limits, name):g}" for name in names]


def test_the_addresses_and_statuses_are_those_of_the_application() -> None:
    app = application(FakeEngine(), token="a-token-of-some-length")  # type: ignore[arg-type]
    paths = app.openapi()["paths"]
    routes = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    named = re.findall(r"`((?:GET|POST|PUT|DELETE) /[a-z]+[^?`]*)", PAGE)
    left = {"GET /openapi.json"}
    assert routes - left == {each.replace("NAME", "{name}") for each in named} - left
    assert {"200", "4XX", "5XX"} == set(paths["/predict"]["post"]["responses"])
    rows = {int(each) for status, *_ in cells("status") for each in status.split(", ")}
    text = "".join(file.read_text() for file in (ROOT / "src" / "vitlab" / "serve").glob("*.py"))
    raised = {int(status) for status in re.findall(r"Refused\(\s*(\d{3})", text)}
    assert len(raised) > 10
    assert raised <= rows


def test_the_example_of_masks_boxes_and_numbers_runs(tmp_path: Path) -> None:
    """Its curl and its Python, against runs of these names."""
    runs = save_heads(tmp_path)
    engine = Engine(limits=Limits(decoders=1, timeout=PATIENCE), device="cpu")
    for name, kind in (("scenes", "masks"), ("things", "boxes"), ("ages", "numbers")):
        engine.add(name, str(runs[kind]))
    photo(1).save("photo.jpg")
    section = PAGE.partition("## Masks, boxes and numbers")[2].partition("\n## ")[0]
    curl = next(shlex.split(line) for line in section.splitlines() if line.startswith("curl "))
    code = section.partition("```py\n")[2].partition("```")[0]

    def script(port: int) -> str:
        out, place = io.StringIO(), f"127.0.0.1:{port}"
        wait_until(lambda: status(talk(port, [head("GET", "/ready")])) == 200)
        if shutil.which("curl"):
            subprocess.run([each.replace("127.0.0.1:8000", place) for each in curl], check=True)
        with redirect_stdout(out):
            exec(code.replace("127.0.0.1:8000", place), {"vitlab": vitlab})
        return out.getvalue()

    text, _ = served(script, cast(Any, engine))
    assert re.fullmatch(
        r"\(24, 32\)\n((cat|dog) 0\.\d+ \(.*\)\n)+\{'age': .*, 'height': .*\}\n", text
    )
    if shutil.which("curl"):
        with Image.open("mask.png") as mask:
            assert (mask.size, mask.mode) == ((32, 24), "P")


def test_the_figures_are_those_of_metrics() -> None:
    text = generate_latest(Engine(device="cpu").metrics.registry).decode()
    for name in re.findall(r"`(vitlab_[a-z_]+)`", PAGE):
        family = name.removesuffix("_total")
        assert f"# TYPE {name} " in text or f"# TYPE {family} " in text, name
