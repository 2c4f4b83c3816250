"""The page about the service has its addresses, statuses and figures as they are."""

import re

from prometheus_client import generate_latest

from docs.pages import ROOT
from serve.fakes import FakeEngine
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


def test_the_figures_are_those_of_metrics() -> None:
    text = generate_latest(Engine(device="cpu").metrics.registry).decode()
    for name in re.findall(r"`(vitlab_[a-z_]+)`", PAGE):
        family = name.removesuffix("_total")
        assert f"# TYPE {name} " in text or f"# TYPE {family} " in text, name
