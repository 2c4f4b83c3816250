"""benchmarks/published.py: published models against the libraries they are from, by a hub here."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import vitlab
from docs.pages import ROOT
from oracles import peers
from oracles.hub import Hub, running_hub
from vitlab.errors import HubError, PackageError, WeightsError
from weights.test_hub import files, unreachable

TIMM, VIT = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "google/vit-base-patch16-224"
CLIP, PLAIN = "openai/clip-vit-base-patch32", "facebook/dino-vits16"
SIGLIP = "google/siglip-base-patch16-224"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running_hub(tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("published")


class Called(NamedTuple):
    """What the script did."""

    code: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def call(tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The script, as it is run with these words."""

    def run(*words: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["published.py", *words])
        code = 0
        try:
            tool.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Called(code, said.out, said.err)

    return run


def of_timm(folder: Path) -> dict[str, bytes]:
    timm = peers.timm()
    torch.manual_seed(0)
    arguments = {"depth": 2, "img_size": 32}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **arguments)
    timm.models.save_for_hf(model, folder, model_args=arguments)
    return files(folder)


def of_transformers(kind: str, folder: Path) -> dict[str, bytes]:
    library = peers.transformers()
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8,
        "intermediate_size": 64, "image_size": 32,
    }  # fmt: skip
    text = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99,
        "intermediate_size": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    }  # fmt: skip
    if kind == "clip":
        vision = library.CLIPVisionConfig(**sizes)
        whole = {"vision_config": vision.to_dict(), "text_config": text, "projection_dim": 12}
        model = library.CLIPModel(library.CLIPConfig(**whole))
    elif kind == "siglip":
        vision = library.SiglipVisionConfig(**sizes)
        model = library.SiglipModel(
            library.SiglipConfig(vision_config=vision.to_dict(), text_config=text)
        )
    else:
        model = getattr(library, kind)(library.ViTConfig(**sizes))
    model.save_pretrained(folder)
    return files(folder)


def test_forty_published_models_are_listed_and_none_was_measured_yet(tool: Any) -> None:
    models = tool.published()
    assert len(models) == 40
    assert {each.library for each in models.values()} == {"timm", "transformers"}
    for each in models.values():
        assert bool(each.outputs) == bool(each.commit)
        assert (each.library == "timm") == each.name.startswith("timm/")


def test_a_model_of_timm(hub: Hub, tmp_path: Path, call: Call) -> None:
    commit = hub.add(TIMM, of_timm(tmp_path / "m"))
    code, out, err = call(TIMM, "--json")
    (found,) = json.loads(out)
    assert code == 0
    assert TIMM in err
    assert (found["agrees"], found["compared"], found["commit"]) == (True, "logits", commit)
    assert found["difference"] < 1e-5
    assert found["recorded"] is None
    assert len(found["outputs"]) == 8
    assert found["format"].startswith("timm")
    out = call(TIMM).out
    assert "| agrees |" in out
    assert "outputs of 1 were never recorded" in out


@pytest.mark.parametrize(
    ("name", "kind", "compared"),
    [
        (VIT, "ViTForImageClassification", "logits"), (PLAIN, "ViTModel", "tokens"),
        (CLIP, "clip", "embedding"), (SIGLIP, "siglip", "features"),
    ],
)  # fmt: skip
def test_models_of_transformers(
    hub: Hub, tmp_path: Path, tool: Any, name: str, kind: str, compared: str
) -> None:
    hub.add(name, of_transformers(kind, tmp_path / "m"))
    (found,) = tool.verify(name)
    assert (found.agrees, found.compared) == (True, compared)
    assert found.difference is not None
    assert found.difference < 1e-5


def test_another_result_is_told(
    hub: Hub, tmp_path: Path, tool: Any, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    hub.add(TIMM, of_timm(tmp_path / "m"))
    (right,) = tool.verify(TIMM)
    listed = {TIMM: tool.Published(TIMM, "timm", right.outputs, right.commit)}
    monkeypatch.setattr(tool, "published", lambda: listed)
    assert tool.verify(TIMM)[0].recorded
    real = tool.load
    monkeypatch.setattr(tool, "load", lambda folder: real(folder, gelu="quick", norm_eps=0.1))
    (found,) = tool.verify(TIMM)
    assert not found.agrees
    assert found.difference is not None
    assert found.difference > tool.CLOSE
    assert found.recorded is False
    code, out, _ = call(TIMM)
    assert code == 0
    assert "DIFFERS" in out
    assert "not the outputs that were recorded" in out


def test_of_all_those_that_cannot_be_compared_say_why(
    hub: Hub, tmp_path: Path, tool: Any, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    hub.add(TIMM, of_timm(tmp_path / "m"))
    hub.add(VIT, files(vitlab.save(vitlab.create("ViT-Ti1/16", 3, 32), tmp_path / "own")))
    names = (TIMM, VIT, CLIP)
    listed = {name: tool.published()[name] for name in names}
    monkeypatch.setattr(tool, "published", lambda: listed)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    code, out, _ = call("all", "--json")
    found = json.loads(out)
    assert code == 0
    assert [each["name"] for each in found] == list(names)
    assert found[0]["agrees"]
    assert "pip install transformers" in found[1]["problem"]
    assert "not found here or on the Hub" in found[2]["problem"]
    assert call("all").out.count("not compared") == 2
    with pytest.raises(PackageError, match="pip install transformers"):
        tool.verify(VIT)


def test_without_a_network_it_says_what_it_would_fetch(
    hub: Hub, tool: Any, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    unreachable(monkeypatch)
    code, out, err = call(TIMM)
    assert (code, out) == (2, "")
    assert f"a network is needed to fetch {TIMM} (" in err
    with pytest.raises(HubError) as caught:
        tool.verify("all")
    assert all(name in str(caught.value) for name in tool.published())
    assert "\n" not in str(caught.value)


def test_the_picture_is_the_same_everywhere_and_a_part_of_a_larger_one(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tool.picture
    assert np.array_equal(picture(300, 400)[:64, :80], picture(64, 80))
    assert picture(64, 64).std() > 50
    model = vitlab.create("ViT-Ti1/16", 3, (32, 48), mean=0.25, std=0.5)
    images = tool.picture_for(model)
    assert images.shape == (1, 3, 32, 48)
    first = (picture(1, 1)[0, 0, 0] / 255 - 0.25) / 0.5
    assert images[0, 0, 0, 0] == pytest.approx(first)
    monkeypatch.setattr(tool, "PICTURE", "other")
    with pytest.raises(WeightsError, match="the picture has the checksum"):
        tool.picture_for(model)
