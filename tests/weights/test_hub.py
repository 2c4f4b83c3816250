"""Models to a hub and back, over HTTP on this machine; without network, from the cache."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, constants

import vitlab
from conftest import LIGHT, call
from made_models import equal, tiny
from oracles.hub import Hub
from vitlab.files import sha256
from vitlab.weights.hub import describe, fetch, is_hub_name
from vitlab.weights.publish import card
from vitlab.weights.save import save_provenance
from vitlab.weights.sharded import INDEX

NAME = "me/pets"


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def refused(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(vitlab.UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def unreachable(patch: pytest.MonkeyPatch) -> None:
    """No network: nothing listens on this port."""
    nowhere = "http://127.0.0.1:9"
    patch.setattr(constants, "ENDPOINT", nowhere)
    template = nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_there_and_back(hub: Hub) -> None:
    model = tiny()
    model.provenance = {"data": "digits", "license": "mit"}
    url = vitlab.push(model, NAME, token="hf_secret", message="First", private=True)
    assert url == f"{hub.url}/{NAME}"
    repository = hub.repositories[NAME]
    assert repository.private
    assert repository.messages[-1] == "First"
    assert hub.tokens == {"Bearer hf_secret"}
    uploaded = repository.commits[repository.at("main") or ""]
    assert set(uploaded) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    assert "architecture" in json.loads(uploaded["config.json"]), "timm opens it"
    folder = fetch(NAME)
    loaded = vitlab.load(folder)
    assert equal(loaded, model)
    assert loaded.config == model.config
    assert loaded.provenance == model.provenance
    assert folder.name == repository.at("main")


def test_pushing_again_replaces_every_shard(hub: Hub, tmp_path: Path) -> None:
    sharded = files(vitlab.save(tiny(), tmp_path / "m", shard_bytes=4_000))
    hub.add(NAME, sharded | {"notes.txt": b"kept"})
    before = fetch(NAME)
    assert len(list(before.glob("model-*"))) > 3
    model = tiny(1)
    vitlab.push(model, NAME)
    after = fetch(f"hf-hub:{NAME}")
    assert {file.name for file in after.iterdir()} == {
        "README.md", "config.json", "model.safetensors",
    }  # fmt: skip
    assert equal(vitlab.load(after), model)
    now = hub.repositories[NAME].commits[after.name]
    assert "notes.txt" in now
    assert [name for name in now if name.startswith("model")] == ["model.safetensors"]
    assert vitlab.load(fetch(NAME, before.name)).config == model.config


def test_license_and_metrics_are_carried_along(hub: Hub) -> None:
    model = tiny()
    model.provenance = {"license": "cc-by-nc-4.0"}
    vitlab.push(model, NAME, license="mit", metrics={"accuracy": 0.875, "notes": ["long"]})
    assert model.provenance == {"license": "cc-by-nc-4.0"}
    loaded = vitlab.load(fetch(NAME))
    assert loaded.provenance == {
        "license": "mit", "source_license": "cc-by-nc-4.0", "metrics": {"accuracy": 0.875},
    }  # fmt: skip
    page = ModelCard.load(fetch(NAME) / "README.md")
    assert page.data.license == "mit"
    assert "Initial weights: cc-by-nc-4.0" in page.content
    assert "0.8750" in page.content


def test_only_what_a_model_needs_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    own = files(vitlab.save(tiny(), tmp_path / "m"))
    more = ("pytorch_model.bin", "tf_model.h5", "modeling.py", "onnx/model.safetensors", "a.pt")
    others = dict.fromkeys((*more, "model.fp16.safetensors"), b"x" * 100)
    hub.add(NAME, own | others | {"preprocessor_config.json": b"{}", "README.md": b"# me"})
    folder = fetch(NAME)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == {
        "config.json", "model.safetensors", "preprocessor_config.json", "README.md",
    }  # fmt: skip
    gets = [line for line in hub.asked if line.startswith("GET /me/pets/resolve/")]
    assert len(gets) == 4


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("config.json", "open_clip_model.safetensors", "pytorch_model.bin"),
         ("config.json", "open_clip_model.safetensors")),
        (("model.safetensors.index.json", "model-00001-of-00001.safetensors", "x.safetensors"),
         ("model.safetensors.index.json", "model-00001-of-00001.safetensors")),
        (("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin", "x.pth"),
         ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin")),
        (("open_clip_config.json", "open_clip_pytorch_model.bin", "x.pt"),
         ("open_clip_config.json", "open_clip_pytorch_model.bin")),
        (("README.md", "vit_tiny.pth", "training_args.bin", "code.py"),
         ("README.md", "vit_tiny.pth")),
        (("README.md", "adapter_config.json", "adapter_model.safetensors"),
         ("README.md", "adapter_config.json", "adapter_model.safetensors")),
    ],
)  # fmt: skip
def test_one_set_of_weights(hub: Hub, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    hub.add(NAME, {name: name.encode() for name in names})
    assert {file.name for file in fetch(NAME).iterdir()} == set(wanted)


def test_without_network_the_cache_is_used_and_that_is_said(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = files(vitlab.save(tiny(), tmp_path / "m"))
    commit = hub.add(NAME, own)
    first = fetch(NAME)
    hashes = {name: sha256(tmp_path / "m" / name) for name in own}
    assert describe(first) == {"name": NAME, "commit": commit, "files": hashes}
    assert describe(tmp_path / "m") == {"files": hashes}
    asked = len(hub.asked)
    assert fetch(NAME, commit).name == commit, "a commit that is there needs no network"
    assert len(hub.asked) == asked
    hub.refuses = 500
    assert fetch(NAME) == first
    assert "the Hub answers 500" in refused(fetch, "me/others")
    capsys.readouterr()
    unreachable(monkeypatch)
    assert fetch(NAME) == first
    said = capsys.readouterr()
    assert said.out == ""
    assert "the Hub does not answer: using me/pets from" in said.err
    assert commit in said.err
    assert equal(vitlab.load(fetch(NAME)), vitlab.load(tmp_path / "m"))
    assert "not in the local cache" in refused(fetch, "me/others")
    assert "me/pets at v2" in refused(fetch, NAME, "v2")


def test_an_interrupted_download_is_not_taken_for_a_model(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = files(vitlab.save(tiny(), tmp_path / "m", shard_bytes=4_000))
    hub.add(NAME, own)
    folder = fetch(NAME)
    (folder / max(own)).unlink() if max(own) != INDEX else min(folder.glob("model-*")).unlink()
    with monkeypatch.context() as patch:
        unreachable(patch)
        assert "not in the local cache" in refused(fetch, NAME)
    assert equal(vitlab.load(fetch(NAME)), vitlab.load(tmp_path / "m"))


def test_offline_from_a_cache_laid_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = "0123456789" * 4
    home = tmp_path / "hub" / "models--me--pets"
    blobs, snapshot = home / "blobs", home / "snapshots" / commit
    for folder in (blobs, snapshot, home / "refs"):
        folder.mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    for file in vitlab.save(tiny(), tmp_path / "m", shard_bytes=4_000).iterdir():
        number = sha256(file)
        shutil.copy(file, blobs / number)
        (snapshot / file.name).symlink_to(Path("../../blobs") / number)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = fetch("me/pets")
    assert equal(vitlab.load(folder), vitlab.load(tmp_path / "m"))
    assert describe(folder)["commit"] == commit
    assert fetch("me/pets", commit) == folder
    assert "using me/pets from" in capsys.readouterr().err
    assert "cannot load me/others, which is not in the local cache" in refused(fetch, "me/others")


def test_what_the_hub_refuses(hub: Hub, tmp_path: Path) -> None:
    own = files(vitlab.save(tiny(), tmp_path / "m"))
    hub.add(NAME, own)
    hub.add("me/gated", own, gated=True)
    hub.add("me/empty", {"README.md": b"# soon"})
    assert "not found here or on the Hub" in refused(fetch, "me/nothing")
    assert "no such branch, tag or commit" in refused(fetch, NAME, "v9")
    assert "it is gated: request access on its page" in refused(fetch, "me/gated")
    assert "has no supported weights" in refused(fetch, "me/empty")
    hub.add("me/two", {"a.pth": b"x", "b.pth": b"y"})
    assert "has several files of weights (a.pth, b.pth): download one" in refused(fetch, "me/two")
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "file").touch()
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
        message = refused(fetch, NAME)
        assert message.startswith(f"cannot load {NAME}")
        assert str(tmp_path / "file") in message
        assert "the Hub" not in message  # the disk fails, not the Hub
    hub.refuses = 401
    assert "hf auth login" in refused(fetch, NAME)
    assert "hf auth login" in refused(vitlab.push, tiny(), NAME, token="hf_secret")
    hub.refuses = 503
    message = refused(vitlab.push, tiny(), NAME, token="hf_secret")
    assert "cannot push to me/pets: the Hub answers 503" in message
    assert "hf_secret" not in message


def test_nothing_is_sent_for_what_cannot_be_pushed(hub: Hub) -> None:
    assert "cannot save a fused model" in refused(vitlab.push, vitlab.fuse(tiny()), NAME)
    assert "expected user/name" in refused(vitlab.push, tiny(), "pets")
    assert hub.repositories == {}


IS_ONE = (  # the last, so that the message is about the Hub
    "google/vit-base-patch16-224", "timm/vit_base_patch16_224.augreg_in21k", "hf-hub:timm/vit",
    "hf://user/name", "hf://bad",
)  # fmt: skip
IS_NONE = (
    "name", "a/b/c", "./user/name", "../name", "/user/name", "~/name", "user/",
    "user/name.safetensors", "user/weights.npz", "user/na me", "user/name\n", "user/a--b",
    Path("user/name"),
)  # fmt: skip


def test_names_of_the_hub() -> None:
    assert all(map(is_hub_name, IS_ONE))
    assert not any(map(is_hub_name, IS_NONE))
    assert is_hub_name("user/name")
    Path("user/name").mkdir(parents=True)
    assert not is_hub_name("user/name")  # which is here


def test_bad_names_and_revisions() -> None:
    for name in ("hf://bad", "../x", "a/" + "b" * 100, "a/b.git", ""):
        assert "expected user/name" in refused(fetch, name)
    for revision in ("../main", "a b", "", "x\n"):
        assert "is not a branch, tag or commit" in refused(fetch, NAME, revision)


def test_a_delta_finds_its_base_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(NAME, files(vitlab.save(tiny(), tmp_path / "m")))
    base, model = vitlab.load(NAME), vitlab.load(NAME)
    assert base.provenance["commit"] == commit
    assert set(base.provenance["files"]) == {"config.json", "model.safetensors"}
    with torch.no_grad():
        model.norm.bias += 1
    file = vitlab.delta(model, base).save(tmp_path / "d.safetensors")
    hub.add(NAME, files(vitlab.save(tiny(1), tmp_path / "n")))  # main has moved on
    assert equal(vitlab.load(file), model)
    shutil.rmtree(tmp_path / "cache")
    assert equal(vitlab.load(file), model)
    shutil.rmtree(tmp_path / "cache")
    del hub.repositories[NAME]
    message = refused(vitlab.load, file)
    assert "not found here or on the Hub" in message
    assert "base=" in message


def front(text: str) -> dict[str, Any]:
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


def test_the_command_carries_the_figures_of_a_run(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("digits", model="ViT(width=16,depth=1,heads=2,mlp=32)/4", steps=1)
    run = vitlab.train(recipe, tmp_path / "run", host=LIGHT)

    def pushed() -> dict[str, bytes]:
        assert call(capsys, "push", str(run.folder), NAME)[0] == 0
        return hub.repositories[NAME].commits[hub.repositories[NAME].at("main") or ""]

    kept = pushed()
    (result,) = front(kept["README.md"].decode())["model-index"][0]["results"]
    assert result["metrics"][0] == {
        "type": "accuracy", "value": run.metrics["accuracy"], "name": "accuracy"
    }  # fmt: skip
    assert (result["dataset"]["name"], result["dataset"]["split"]) == ("digits", "test")
    about = json.loads(kept["config.json"])["provenance"]["metrics"]
    assert about["mcc"] == run.metrics["mcc"]
    assert str(tmp_path) not in json.dumps(about)
    loaded = vitlab.load(run.folder)
    loaded.provenance |= {"temperature": 2.0}
    save_provenance(loaded, run.folder / "model")
    about = json.loads(pushed()["config.json"])["provenance"]["metrics"]
    assert "accuracy" in about
    assert not {"nll", "ece"} & set(about)  # a calibrated model has another NLL


def test_a_card_says_what_it_is() -> None:
    model = vitlab.create("ViT-Ti/16", 2, (64, 32), labels=("a | b", "c: - d"), crop=0.9)
    model.provenance = {
        "data": "me/photos", "recipe": "small", "epochs": 30, "seed": 0, "fingerprint": "f" * 64,
        "license": "apache-2.0", "source": "google/vit", "commit": "1" * 40,
        "metrics": {"accuracy": 0.9123, "mcc": 0.5, "nll": float("nan"), "images": 1234},
    }  # fmt: skip
    text = card(model, "me/pets_2")
    assert front(text) == {
        "library_name": "vitlab",
        "license": "apache-2.0",
        "pipeline_tag": "image-classification",
        "tags": ["vitlab", "vision-transformer", "ViT-Ti/16"],
        "datasets": ["me/photos"],
        "base_model": "google/vit",
        "metrics": ["accuracy", "matthews_correlation"],
        "model-index": [{"name": "pets_2", "results": [{
            "task": {"type": "image-classification", "name": "Image classification"},
            "dataset": {"type": "me/photos", "name": "me/photos", "split": "test"},
            "metrics": [
                {"type": "accuracy", "value": 0.9123, "name": "accuracy"},
                {"type": "matthews_correlation", "value": 0.5,
                 "name": "MCC"},
            ],
        }]}],
    }  # fmt: skip
    results = ModelCard(text).data.eval_results  # as the Hub's own library reads them
    assert [each.metric_value for each in results or []] == [0.9123, 0.5]
    price = vitlab.measure.cost(model)
    for words in (
        f"| parameters | {price.params:,} |", f"| multiply-adds per image | {price.macs:,} |",
        "| images | 64x32 pixels, 3 channels |", "mean 0.5, 0.5, 0.5", "0.9 of each side",
        r"2: a \| b, c: - d |", "| accuracy | 0.9123 |", "| images | 1,234 |", "| epochs | 30 |",
        'vitlab.load("me/pets_2")', "vitlab.classify(model",
    ):  # fmt: skip
        assert words in text
    assert "f" * 64 not in text
    book = vitlab.create("dVAE(codes=12,code_width=6,width=8)/4", image_size=16)
    assert "width=8)/4**, an image tokenizer of 12 codes." in card(book, NAME)


def test_a_card_cannot_be_broken_by_what_it_is_told() -> None:
    model = vitlab.create("BiT-R50x1", 2, 32, stages=(1,), labels=("--- x: y", "`<b>|"))
    evil = "x\n---\nlicense: none\n# | `"
    model.provenance = {
        "license": evil,
        "data": evil,
        "recipe": evil,
        "metrics": {"accuracy": evil},
    }
    text = card(model, NAME)
    assert front(text)["license"] == "other"
    assert front(text)["license_name"] == "x-license-none"
    assert front(text)["tags"][1] == "resnet"
    assert text.count("\n---\n") == 1
    assert ModelCard(text).data.to_dict()["license"] == "other"
    private = tiny(zero_head=True)
    text = card(private, NAME)
    assert front(text) == {
        "library_name": "vitlab", "pipeline_tag": "image-feature-extraction",
        "tags": ["vitlab", "vision-transformer"],
    }  # fmt: skip
    assert "model.features(images)" in text
    assert not {"## Results", "## Training"} & set(text.splitlines())
    private.provenance = {"base": "runs/base", "tune": "attention", "base_fingerprint": "f" * 64}
    assert "| started from | runs/base |" in card(private, NAME)
    assert "base_model" not in card(private, NAME)  # a folder, not a name on the Hub
    private.provenance |= {"base": "timm/vit_tiny", "base_commit": "0" * 40}
    assert "base_model: timm/vit_tiny" in card(private, NAME)
    place = "/home/me/photos"
    private.provenance = {"data": place, "source": place, "metrics": {"accuracy": 0.5}}
    assert "/home" not in card(private, NAME)
    assert front(card(private, NAME))["model-index"][0]["results"][0]["dataset"]["type"] == "photos"
    private.provenance = {"metrics": {"accuracy": 0.5}}
    assert "model-index" not in card(private, NAME)  # nobody knows on what data
