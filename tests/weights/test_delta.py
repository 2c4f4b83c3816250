"""Deltas: exactly what changed, exactly back, and only onto the base they were made from."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitlab
from counted import COUNTED_BYTES, bytes_read, networks
from made_models import equal, tiny
from vitlab.weights.deltas import VERSION as FORMAT
from vitlab.weights.identity import checksum, fingerprint
from vitlab.weights.load_delta import load_base, load_delta


def nudged(model: Any, *parts: str) -> Any:
    """A copy whose tensors with one of these words in their names have changed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in other.state_dict().items():
            if any(part in name for part in parts):
                tensor += 1
    return other


def saved_base(folder: Path, **choices: Any) -> Any:
    """A base that knows where it was loaded from."""
    base = vitlab.load(vitlab.save(tiny(**choices), folder))
    base.provenance["source"] = str(folder)
    return base


def test_it_holds_exactly_what_changed(tmp_path: Path) -> None:
    """Three things, section 4: attention, position embedding and classifier are trained."""
    base = tiny()
    model = nudged(base, ".attention.0.body.", "positions.", "classify.")
    trained = {n for n in base.state_dict() if ".qkv." in n or ".project." in n or "positions" in n}
    change = vitlab.delta(model, base)
    assert set(change.tensors) == trained | {"head.classify.weight", "head.classify.bias"}
    assert change.bytes == sum(model.state_dict()[name].nbytes for name in change.tensors)
    assert equal(change.apply(base), model)
    assert equal(base, tiny())


def test_through_a_file_and_back(tmp_path: Path) -> None:
    base = saved_base(tmp_path / "base")
    model = nudged(base, ".attention.")
    model.provenance = {"data": "pets", "license": "mit"}
    file = vitlab.delta(model, base).save(tmp_path / "deep" / "pets.safetensors")
    for loaded in (vitlab.load(file), vitlab.load(str(file)), vitlab.load(file, base=base)):
        assert equal(loaded, model)
        assert loaded.config == model.config
        assert loaded.provenance == model.provenance
        assert not loaded.training
        assert all(weight.requires_grad for weight in loaded.parameters())
    assert [each.name for each in file.parent.iterdir()] == ["pets.safetensors"]
    again = vitlab.delta(model, base).save(tmp_path / "deep" / "again.safetensors")
    assert again.read_bytes() == file.read_bytes()


def test_a_new_head_and_another_structure_are_there_whole(tmp_path: Path) -> None:
    base = saved_base(tmp_path / "base")
    model = nudged(vitlab.load(tmp_path / "base", classes=7, image_size=(32, 16)), "classify")
    change = vitlab.delta(model, base)
    assert set(change.tensors) == {"head.classify.weight", "head.classify.bias"}
    loaded = vitlab.load(change.save(tmp_path / "d.safetensors"))
    assert equal(loaded, model)
    assert loaded(torch.zeros(1, 3, 32, 16)).shape == (1, 7)
    again = vitlab.load(tmp_path / "d.safetensors", classes=5, image_size=24)
    assert again(torch.zeros(1, 3, 24, 24)).shape == (1, 5)
    other = tiny(1, layer_scale=1e-4)
    assert equal(vitlab.delta(other, base).apply(base), other)
    same = vitlab.delta(base, base)
    assert same.tensors == {}
    assert equal(vitlab.load(same.save(tmp_path / "same.safetensors")), base)


def test_bits_count_of_any_type_also_running_statistics(tmp_path: Path) -> None:
    base = tiny(stem_norm="batch").to(torch.bfloat16)
    model = copy.deepcopy(base).float().train()
    model(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    model = model.to(torch.bfloat16).eval()
    with torch.no_grad():
        base.norm.bias.zero_()
        model.norm.bias.fill_(-0.0)
    change = vitlab.delta(model, base)
    kinds = {name.rsplit(".", 1)[1] for name in change.tensors if name != "norm.bias"}
    assert kinds == {"running_mean", "running_var", "num_batches_tracked"}
    assert equal(vitlab.load(change.save(tmp_path / "d.safetensors"), base=base), model)
    with torch.no_grad():
        for weight in (*model.parameters(), *change.apply(base).parameters()):
            weight.add_(5)  # a delta stays as it was made
    assert torch.equal(change.apply(base).norm.bias, torch.zeros(16).bfloat16())
    assert vitlab.delta(base, tiny()).tensors.keys() == base.state_dict().keys()
    first, other = tiny(), tiny()
    with torch.no_grad():
        other.norm.bias.view(torch.int32)[3] ^= 1
    numbers = [
        fingerprint(each)
        for each in (first, other, tiny(gelu="tanh"), tiny(labels=("a", "b", "c")))
    ]
    assert len(set(numbers)) == 4
    assert fingerprint(tiny()) == numbers[0]


def test_fused_models_are_refused() -> None:
    base = tiny()
    with pytest.raises(vitlab.UserError, match="a fused model"):
        vitlab.delta(vitlab.fuse(base), base)
    with pytest.raises(vitlab.UserError, match="a fused model"):
        vitlab.delta(base, vitlab.fuse(base))
    with pytest.raises(vitlab.UserError, match="a fused model"):
        vitlab.delta(base, base).apply(vitlab.fuse(base))


def test_the_wrong_base_is_named(tmp_path: Path) -> None:
    base = saved_base(tmp_path / "base")
    change = vitlab.delta(nudged(base, ".attention."), base)
    wrong = tiny(1)
    wrong.provenance["source"] = "another"
    with pytest.raises(vitlab.UserError) as caught:
        change.apply(wrong)
    for words in ("wrong base", str(tmp_path / "base"), "another", fingerprint(wrong)[:12]):
        assert words in str(caught.value)
    file = change.save(tmp_path / "d.safetensors")
    vitlab.save(wrong, tmp_path / "base")  # what is there now is another model
    with pytest.raises(vitlab.UserError) as caught:
        vitlab.load(file)
    assert f"fingerprint {fingerprint(wrong)[:12]}" in str(caught.value)
    assert "base=" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_named() -> None:
    base = tiny()
    change = vitlab.delta(nudged(base, ".attention."), base)
    for tensors, words in (
        ({"norm.bias": torch.zeros(3)}, r"'norm.bias' is torch.float32 \(3,\), not torch.float32"),
        ({"norm.scale": torch.zeros(16)}, "tensor 'norm.scale' is not part of"),
    ):
        with pytest.raises(vitlab.UserError, match=words):
            replace(change, tensors=change.tensors | tensors).apply(base)


def test_the_base_is_found_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was given, as seen from the delta after both moved, and beside the delta."""
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    monkeypatch.chdir(work)
    base = saved_base(Path("runs/base"))
    model = nudged(base, ".attention.")
    vitlab.delta(model, base).save("tasks/d.safetensors")
    assert equal(vitlab.load("tasks/d.safetensors"), model)
    monkeypatch.chdir(tmp_path)
    moved = work.rename(tmp_path / "moved")
    assert equal(vitlab.load(moved / "tasks" / "d.safetensors"), model)
    (moved / "runs" / "base").rename(moved / "tasks" / "base")
    assert equal(vitlab.load(moved / "tasks" / "d.safetensors"), model)
    vitlab.save(tiny(9), "runs/base")  # of the same name, but not it: the next place is tried
    assert equal(vitlab.load(moved / "tasks" / "d.safetensors"), model)
    file = moved / "tasks" / "d.safetensors"
    change = load_delta(file)
    assert change is not None
    alone = load_base(change, file)
    assert equal(change.apply(alone), model)
    assert fingerprint(alone) == change.base.fingerprint
    (moved / "tasks" / "base").rename(tmp_path / "far")
    with pytest.raises(vitlab.UserError, match="needs its base"):
        load_base(change, file)
    with pytest.raises(vitlab.UserError, match=r"give its location with --base \(Python: base=…"):
        vitlab.load(moved / "tasks" / "d.safetensors")
    assert equal(vitlab.load(moved / "tasks" / "d.safetensors", base="far"), model)


@pytest.mark.parametrize("changes", [{"classes": 5}, {"image_size": 24}, {"classes": 3}])
def test_a_base_loaded_with_other_sizes_is_found(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved_base(tmp_path / "base")
    base = vitlab.load(tmp_path / "base", **changes)
    base.provenance["source"] = str(tmp_path / "base")
    model = nudged(base, ".attention.", "classify.")
    file = vitlab.delta(model, base).save(tmp_path / "d.safetensors")
    assert equal(vitlab.load(file), model)


AS_LOADED: dict[str, dict[str, Any]] = {
    "as it is": {}, "another head": {"classes": 5}, "another size": {"image_size": 24},
    "both": {"classes": 5, "image_size": (24, 16)}, "a new head of as many": {"classes": 3},
}  # fmt: skip


@COUNTED_BYTES
@pytest.mark.parametrize("grid", ["stored", "own"])
@pytest.mark.parametrize("case", AS_LOADED)
def test_the_base_is_read_once(case: str, grid: str, tmp_path: Path) -> None:
    """It is an archive of Google's, whose bytes the system counts: a safetensors file is mapped."""
    large = tiny(name="ViT(width=128,depth=2,heads=2,mlp=512)/8", gelu="tanh", fit="squash")
    vitlab.save(large, tmp_path / "google", to="google")
    archive = tmp_path / "google" / "model.npz"
    base = vitlab.load(archive, **({"image_size": 16} | AS_LOADED[case]))
    base = base if grid == "stored" else base.remade(base.config.settled, base.state_dict())
    base.provenance["source"] = str(archive)
    model = nudged(base, ".attention.")
    file = vitlab.delta(model, base).save(tmp_path / "d.safetensors")
    before = bytes_read()
    with networks() as built:
        assert equal(vitlab.load(file), model)
    assert len(built) <= 4  # base, base with its grid, and model; another head's names
    assert bytes_read() - before < 2 * (archive.stat().st_size + file.stat().st_size)


def test_a_delta_of_a_delta(tmp_path: Path) -> None:
    base = saved_base(tmp_path / "base")
    first = vitlab.delta(nudged(base, "norm"), base).save(tmp_path / "one.safetensors")
    middle = vitlab.load(first)
    middle.provenance["source"] = str(first)
    model = nudged(middle, "classify.")
    second = vitlab.delta(model, middle).save(tmp_path / "two.safetensors")
    assert equal(vitlab.load(second), model)


def test_deltas_of_each_other_end(tmp_path: Path) -> None:
    base = tiny()
    base.provenance["source"] = str(tmp_path / "d.safetensors")
    file = vitlab.delta(nudged(base, "norm"), base).save(tmp_path / "d.safetensors")
    with pytest.raises(vitlab.UserError, match="circular or longer than 8"):
        vitlab.load(file)


def test_an_older_file_survives_a_failed_save(tmp_path: Path) -> None:
    base = tiny()
    file = vitlab.delta(base, base).save(tmp_path / "d.safetensors")
    before = file.read_bytes()
    blocked = vitlab.delta(nudged(base, "norm"), base)
    blocked.provenance["note"] = "x" * 6_000_000
    with pytest.raises(vitlab.UserError, match="too long"):
        blocked.save(file)
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["d.safetensors"]
    with pytest.raises(vitlab.UserError, match="cannot write"):
        vitlab.delta(base, base).save(file / "inside")


def rewritten(file: Path, change: Any) -> None:
    """Change the header's content, and its checksum with it."""
    with safe_open(file, framework="pt") as stored:
        whole = json.loads(stored.metadata()[FORMAT])
    change(whole["content"])
    whole["sha256"] = checksum(whole["content"])
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={FORMAT: json.dumps(whole)})


@pytest.mark.parametrize(
    "how", ["heads", "base", "tensor", "seen", "extra", "less", "version", "pickle"]
)
def test_damage_is_one_line(tmp_path: Path, how: str) -> None:
    base = saved_base(tmp_path / "base")
    model = nudged(base, ".attention.")
    model.seen = np.array([2, 5], np.uint64)
    file = vitlab.delta(model, base).save(tmp_path / "d.safetensors")
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata()
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    whole, name = json.loads(metadata[FORMAT]), "blocks.1.attention.0.norm.bias"
    match how:
        case "heads":
            whole["content"]["model"]["heads"] = 1
        case "base":
            whole["content"]["base"]["source"] = "/other"
        case "tensor":
            tensors[name].view(torch.int32)[0] ^= 1
        case "seen":
            tensors["seen"][0] ^= 8
        case "extra":
            tensors["more"] = torch.zeros(1)
        case "less":
            del tensors[name]
    header = {"vitlab-delta-2": "{}"} if how == "version" else {FORMAT: json.dumps(whole)}
    save_file(tensors, file, metadata=header)
    if how == "pickle":
        torch.save(tensors | {FORMAT: "vitlab-delta-1"}, file)
    with pytest.raises(vitlab.UserError) as caught:
        vitlab.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ("damaged delta: its header has the entries" in str(caught.value)) == (how == "version")


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Any]:
    """A delta's file of few bytes, and the model that is in it."""
    base = saved_base(tmp_path / "base", name="ViT(width=4,depth=1,heads=2,mlp=4)/8")
    model = nudged(base, ".attention.")
    model.provenance = {}
    return vitlab.delta(model, base).save(tmp_path / "d.safetensors"), model


often = settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)


@often
@given(data=st.data())
def test_mutated_files_load_exactly_or_are_refused(
    small: tuple[Path, Any], tmp_path: Path, data: st.DataObject
) -> None:
    file, model = tmp_path / "mutated.safetensors", small[1]
    content = bytearray(small[0].read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([len(content), None]))
    file.write_bytes(content[: data.draw(st.integers(0, len(content))) if cut is None else cut])
    try:
        loaded = vitlab.load(file)
    except vitlab.UserError as error:
        assert "\n" not in str(error)
    else:
        assert equal(loaded, model)
        assert loaded.config == model.config


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@often
@given(data=st.data())
def test_other_contents_under_a_right_checksum(
    small: tuple[Path, Any], tmp_path: Path, data: st.DataObject
) -> None:
    """A file somebody made, not one that was damaged: a model or one line, never a traceback."""
    file = tmp_path / "made.safetensors"
    file.write_bytes(small[0].read_bytes())

    def change(content: dict[str, Any]) -> None:
        parts = [content, content["base"], content["model"], content["tensors"]]
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JSON)

    rewritten(file, change)
    try:
        vitlab.load(file)
    except vitlab.UserError as error:
        assert "\n" not in str(error)
    endless = {"source": "x" * 5000, "nearby": None}  # a name that no disk can have
    rewritten(small[0], lambda content: content["base"].update(endless))
    with pytest.raises(vitlab.UserError, match="needs its base"):
        vitlab.load(small[0])
