"""Runs that start from weights: what comes from them, what is trained, how they resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import BRIEF, LIGHT, call, photo_folder
from oracles.peers import timm
from training.kept import resumed, stopped
from vitlab.errors import HubError, OptionError, RunError, WeightsError
from vitlab.models.model import Model
from vitlab.recipes.named import BACKBONE
from vitlab.recipes.recipe import Host
from vitlab.tuning.free import free_names
from vitlab.weights.identity import fingerprint

SHAPE = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
QUICK: dict[str, Any] = {"steps": 2, "batch": 16, "ema": 0.5, "lr": 1e-2}
HOST = Host(workers=0, check_duplicates="no", effort=BRIEF)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of another task and size, with every kind of weight."""
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(
        SHAPE, 7, 24, generator=generator, layer_scale=0.1, registers=1, gelu="tanh",
        mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), crop=0.9, stem_norm="batch",
    )  # fmt: skip
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)
    return vitlab.save(model, tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "photos"
    return str(photo_folder(folder, {"blue": 8, "green": 8, "red": 8}))


def bits(model: Model) -> dict[str, bytes]:
    return {name: t.detach().numpy().tobytes() for name, t in model.state_dict().items()}


@pytest.fixture(scope="module")
def ffn(base: Path, data: str, tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A run that trains MLPs alone."""
    folder = tmp_path_factory.mktemp("runs") / "ffn"
    return vitlab.finetune(data, base, folder, tune="ffn", host=HOST, **QUICK)


@pytest.mark.parametrize("tune", ["all", "norms", "lora"])
def test_only_the_named_parameters_change_and_a_resumed_run_has_the_same_bits(
    tune: str, base: Path, data: str, tmp_path: Path
) -> None:
    recipe = vitlab.recipe("finetune", data, weights=str(base), tune=tune, **QUICK)
    run = vitlab.train(recipe, tmp_path / "run", host=HOST)
    start, model = vitlab.load(base, classes=3), run.model
    before = bits(start)
    changed = {name for name, value in bits(model).items() if value != before[name]}
    batch_norm = {name for name in before if "running" in name or "num_batches" in name}
    assert batch_norm
    free = free_names(model, tune)
    free |= batch_norm if tune in ("all", "norms") else set()
    if tune == "lora":  # its products are in the matrices
        free |= {n for n in before if n.endswith(("qkv.weight", "project.weight"))}
    assert changed == free
    assert bits(vitlab.load(run.folder)) == bits(model)
    mark = fingerprint(vitlab.load(base))
    assert f'base = "{mark}"' in (run.folder / "run.toml").read_text()
    file = run.folder / "delta.safetensors"
    assert file.exists() == (tune != "all")
    if tune == "all":
        config, own = vars(model.config), {"classes": 3, "labels": ("blue", "green", "red")}
        assert config == vars(vitlab.load(base).config) | own | {"zero_head": config["zero_head"]}
    else:
        delta = vitlab.load(file)
        assert bits(delta) == bits(model)
        assert (delta.provenance["tune"], delta.provenance["base_fingerprint"]) == (tune, mark)
    if tune in ("all", "lora"):
        stopped(1, recipe, tmp_path / "cut", HOST)
        assert bits(resumed(recipe, tmp_path / "cut", HOST).model) == bits(model)


def test_the_command_is_the_same_as_python(
    base: Path, data: str, ffn: vitlab.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--steps", "2", "--batch", "16", "--ema", "0.5", "--lr", "0.01", "--workers", "0"]
    words += ["--from", str(base), "--tune", "ffn"]
    code, _, err = call(capsys, "finetune", data, *words, "--out", "two")
    assert code == 0
    assert f"starting from {base} (fingerprint " in err
    assert f"); tune=ffn trains {2 * 1072 + 37 * 16 + 51:,} parameters" in err
    assert bits(vitlab.load("two")) == bits(ffn.model)
    assert call(capsys, "finetune", "--out", "two", "--resume")[0] == 0
    code, _, err = call(capsys, "finetune", data, "--out", "two", "--resume", "--lr", "0.1")
    assert code == 2
    assert "two was started with lr=0.01, not 0.1" in err


def test_a_model_in_hand_starts_the_same_run_and_stays_as_it_is(
    base: Path, data: str, ffn: vitlab.Run, tmp_path: Path
) -> None:
    model = vitlab.load(base)
    before = bits(model)
    run = vitlab.finetune(data, model, tmp_path / "a", tune="ffn", host=HOST, **QUICK)
    assert bits(run.model) == bits(ffn.model)
    assert bits(model) == before
    recipe = vitlab.recipe("small", data, steps=1, batch=16)
    with pytest.raises(OptionError, match="not ViT-Ti/16: leave model= out"):
        vitlab.train(recipe, tmp_path / "b", start=model, host=HOST)
    recipe = vitlab.recipe("small", data, model="", steps=1, batch=16)
    assert vitlab.train(recipe, tmp_path / "b", start=model, host=HOST).model.config.classes == 3
    with pytest.raises(OptionError, match="exclude each other"):
        other = vitlab.recipe("finetune", data, weights="elsewhere")
        vitlab.train(other, tmp_path / "c", start=model, host=HOST)
    assert not (tmp_path / "c").exists()


def test_other_weights_are_refused_on_resuming(base: Path, data: str, tmp_path: Path) -> None:
    mine = vitlab.save(vitlab.load(base), tmp_path / "mine")
    recipe = vitlab.recipe("finetune", data, weights=str(mine), **QUICK)
    stopped(1, recipe, tmp_path / "run", HOST)
    model = vitlab.load(mine)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    vitlab.save(model, mine)
    with pytest.raises(RunError, match=r"mine has changed since .*run was started: choose another"):
        vitlab.train(recipe, tmp_path / "run", resume=True, host=HOST)


def test_any_field_can_be_overridden(base: Path, data: str, tmp_path: Path) -> None:
    """Positions are resized as the family does."""
    choices = {"gelu": "exact", "pool": "mean", "drop_path": 0.2, "crop": 0.5, "mean": (0, 0, 0)}
    choices |= {"image_size": 32}
    few = {"steps": 1, "batch": 16, "tune": "head"}
    run = vitlab.finetune(data, base, tmp_path, host=HOST, **few, **choices)
    assert {name: getattr(run.model.config, name) for name in choices} == choices
    want = vitlab.load(base, image_size=32).state_dict()["positions.0.table"]
    assert torch.equal(run.model.state_dict()["positions.0.table"], want)


def test_what_only_transformers_drop_is_left_out_of_a_resnet_with_a_remark(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitlab.create("BiT-R(1)x1", 5, 32, generator=torch.Generator().manual_seed(0))
    vitlab.save(model, tmp_path / "resnet")
    words = ["--from", str(tmp_path / "resnet"), "--steps", "1", "--workers", "0"]
    words += ["--batch", "4", "--head-start", "zero"]
    code, _, err = call(capsys, "finetune", data, *words, "--drop-path", "0.1", "--out", "a")
    assert code == 0
    assert "BiT-R(1)x1 has no drop_path: left out\n" in err
    code, _, err = call(capsys, "finetune", data, *words, "--heads", "3", "--out", "c")
    assert (code, "unknown BiT-R(1)x1 option 'heads'" in err) == (2, True)


def test_a_file_that_does_not_tell_enough_is_read_with_the_chosen_fields(
    data: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    peer = timm().models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=48, depth=1, num_heads=4, num_classes=9
    )
    torch.save(peer.state_dict(), tmp_path / "own.pth")
    with pytest.raises(WeightsError, match="heads"):
        vitlab.finetune(data, tmp_path / "own.pth", tmp_path / "a", host=HOST, steps=1)
    recipe = vitlab.recipe("finetune", data, weights=str(tmp_path / "own.pth"), heads=4, **QUICK)
    run = vitlab.train(recipe, tmp_path / "b", host=HOST)
    assert run.model.config.heads == 4  # type: ignore[attr-defined]


def test_weights_of_timm_and_transformers(data: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    peer = timm().create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=9)
    torch.save(peer.state_dict(), tmp_path / "timm.pth")
    run = vitlab.finetune(
        data, tmp_path / "timm.pth", tmp_path / "a", tune="head", host=HOST, steps=1, batch=16
    )
    qkv = peer.state_dict()["blocks.0.attn.qkv.weight"]
    assert torch.equal(run.model.state_dict()["blocks.0.attention.0.body.qkv.weight"], qkv)
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "hf")
    run = vitlab.finetune(data, tmp_path / "hf", tmp_path / "b", host=HOST, steps=1, batch=16)
    assert run.model.config.image_size == 16
    assert np.isfinite(run.metrics["nll"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--recipe", "vit-finetune"], "vit-finetune starts from trained weights: name them with"),
        (["--tune", "head"], "tune=head needs trained weights: name them with --from"),
        (["--from", "nowhere"], "no such file or folder: nowhere"),
        (["--from", "BASE", "--image-size", "25"], "image_size=25 is not a multiple of patch=4: "),
        (["--from", "BASE", "--width", "32"], "width=32 does not fit the weights"),
        (["--from", "BASE", "--model", "ViT-S/16"], "not ViT-S/16: leave --model out"),
        (["--from", "BASE", "--widen", "2"], "unknown option 'widen': did you mean width?"),
        (["--from", "BASE", "--classes", "9"], "classes=9, but DATA has 3 classes: leave it out"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_folder(
    words: list[str], says: str, base: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(base) if word == "BASE" else word for word in words]
    code, out, err = call(capsys, "train", data, *words, "--out", "run")
    *begun, message = err.splitlines()
    assert (code, out) == (2, "")
    assert len(begun) <= 1, "what was begun, unless the command line itself is refused"
    assert says.replace("DATA", data) in message
    assert not Path("run").exists()


def test_the_default_backbone_offline(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "finetune", data, "--out", "run")
    assert (code, err.count("\n")) == (2, 2)  # the first says what was begun
    assert BACKBONE in err.splitlines()[1]
    assert err.rstrip().endswith("pass --from WEIGHTS to start from a model on this machine")
    assert BACKBONE in " ".join(call(capsys, "finetune", "--help")[1].split())
    with pytest.raises(HubError):
        vitlab.finetune(data, host=LIGHT)
    with pytest.raises(WeightsError):
        vitlab.finetune(data, "nowhere", host=LIGHT)
