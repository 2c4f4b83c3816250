"""`vitlab measure --full`: figures, tables, plots, and what is refused before anything is done."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab
from conftest import call
from vitlab.measure import rates as rates_module
from vitlab.studies import figure_12 as whole
from vitlab.studies.figure_12 import plot

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
OTHER = "ViT(width=8,depth=1,heads=2,mlp=16)/8"
QUICK = ("--classes", "3", "--seconds", "0.001", "--device", "cpu")


@pytest.fixture(autouse=True)
def small_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "SIDE", {"cpu": 64})
    monkeypatch.setattr(whole, "SHARE", 1e-3)  # one or two batches are tried


def check(figures: dict[str, Any], macs: int, training: bool, rates: dict[str, Any]) -> None:
    for what in ("single", "best"):
        each = figures[what]
        assert each["images_per_second"] == pytest.approx(each["batch"] / each["latency"])
        assert each["latency_p5"] <= each["latency"] <= each["latency_p95"]
        operations = (6 if training else 2) * macs * each["batch"]
        share = operations / each["latency"] / rates["products"]["fp32"]
        assert each["share_of_products"] == pytest.approx(share)
        assert each["passes"] >= 3
    assert figures["single"]["batch"] == 1
    assert figures["best"]["batch"] <= figures["largest"]["batch"]
    assert str(figures["best"]["batch"]) in figures["best"]["tried"]
    assert figures["largest"]["how"] == "counted"
    assert figures["largest"]["batch"] > 100


def test_models_are_measured_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "figures"
    words = ["measure", NAME, OTHER, "--full", "--image-sizes", "16", "32", *QUICK]
    code, text, err = call(capsys, *words, "--out", str(out))
    assert code == 0, err
    printed = {line for line in text.splitlines() if line.startswith(str(out))}
    assert printed == {str(each) for each in out.iterdir()}
    assert {each.name for each in out.iterdir()} == {
        "throughput.png", "throughput.svg", "largest-batch.png", "largest-batch.svg",
        "measure.json",
    }  # fmt: skip
    result = json.loads((out / "measure.json").read_text())
    for row, name in zip(result["models"], (NAME, OTHER), strict=True):
        assert row["model"] == name
        assert [size["image_size"] for size in row["sizes"]] == [16, 32]
        for size in row["sizes"]:
            model = vitlab.create(name, 3, size["image_size"])
            assert size["macs"] == vitlab.measure.cost(model).macs
            check(size["inference"], size["macs"], False, row["rates"])
            check(size["training"], size["macs"], True, row["rates"])
            most = (size[kind]["largest"]["batch"] for kind in ("training", "inference"))
            assert next(most) < next(most)
    with Image.open(out / "throughput.png") as image:
        assert min(image.size) > 300
    words = "".join(ET.parse(out / "largest-batch.svg").getroot().itertext())
    assert "measure" not in words  # text is drawn as paths; the file itself is whole


def test_a_table_of_figures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", NAME, "--full", "--image-sizes", "16", "--no-training", *QUICK]
    code, text, err = call(capsys, *words, "--mode", "fused", "--precision", "bf16-pure")
    assert code == 0, err
    for word in ("mode", "fused", "bf16-pure", "GFLOP/s", "inference", "MFU", "counted"):
        assert word in text
    assert "training" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_saved_model_is_measured_at_other_sizes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = vitlab.save(vitlab.create(NAME, 0, 16), tmp_path / "saved")
    words = ["measure", str(folder), "--full", "--image-sizes", "8", "16", *QUICK[2:], "--json"]
    code, text, err = call(capsys, *words)
    assert code == 0, err
    row = json.loads(text)
    assert [size["image_size"] for size in row["sizes"]] == [8, 16]
    assert all("training" not in size for size in row["sizes"])
    assert err.count("has no single classifier: there is no training step to time") == 2


def test_nothing_is_written_if_it_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole, "best", stop)
    words = ["measure", NAME, "--full", "--out", str(tmp_path / "out"), *QUICK, "--image-size", "8"]
    code, text, _ = call(capsys, *words)
    assert (code, text) == (130, "")
    assert not (tmp_path / "out").exists()


def made_row(**sizes: int) -> dict[str, Any]:
    """A row of a model of which so many images fit at each size."""
    rows = []
    for name, count in sizes.items():
        one = dict.fromkeys(("latency", "latency_p5", "latency_p95"), 0.01)
        best = {"batch": 4, "images_per_second": 10.0 * count, "peak_memory": 2_000_000}
        best |= {"share_of_products": 0.5}
        fits = {"single": one, "best": best, "largest": {"batch": count, "how": "tried"}}
        no = {"single": None, "best": None, "largest": {"batch": 0, "how": "tried"}}
        rows.append({"image_size": int(name[1:]), "inference": fits if count else no})
    rates = {"products": {"fp32": 5e9, "bf16": 1e10}}
    head = {"model": "a model", "device": "a device", "mode": "eager", "precision": "fp32"}
    return head | {"rates": rates, "sizes": rows}


def test_sizes_that_do_not_fit_have_no_point_and_say_so() -> None:
    row = made_row(s64=50, s128=12, s1024=0)
    for name, values in (("throughput", [500, 120]), ("largest-batch", [50, 12])):
        (axes,) = plot([row], name).axes
        (line,) = axes.lines
        assert list(line.get_xdata()) == [64, 128, 1024]
        assert list(line.get_ydata()[:2]) == values
        assert str(line.get_ydata()[2]) == "nan"
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (_, _, device), (title, head, cells) = whole.tables_of(row)
    assert (title, head) == ("  inference", whole.HEAD)
    assert cells[0] == ("64", "10", "10-10", "4", "500", "50.0%", "2 MB", "50")
    assert cells[2] == ("1024", "does not fit", "", "", "", "", "", "0")
    assert all(len(each) == len(whole.HEAD) for each in cells)
    assert dict(device)["bf16 products"] == "10.0 GFLOP/s"
