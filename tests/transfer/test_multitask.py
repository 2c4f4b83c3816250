"""One base and many tasks: the separate models' scores, at the memory of what differs."""

import copy
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from steady import PATIENCE
from vitlab import MultiTask
from vitlab.errors import OptionError, WeightsError
from vitlab.tuning.lora import inject, merged

TINY = "ViT(width=32,depth=2,heads=2,mlp=48)/8"
PARALLEL = "ViT(width=32,depth=2,heads=2,mlp=48,branches=2)/8"
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TINY, {}),
    "parallel": (PARALLEL, {"layer_scale": 0.5, "registers": 2}),
    "mean, 2d in every block": (
        TINY, {"pool": "mean", "positions": "2d", "positions_at": "every", "qk_norm": True}
    ),
    "several queries": (TINY, {"pool": "attention", "queries": 3}),
    "both, rotary, swiglu": (TINY, {"pool": "both", "positions": "rope", "ffn": "swiglu"}),
    "prefix, shared positions": (
        TINY, {"pool": "prefix", "registers": 3, "positions_at": "shared"}
    ),
    "BEiT's bias": (
        TINY,
        {"positions": "bias", "pool": "mean", "class_token": True, "norm_at": "pooled"},
    ),
    "hMLP, batch norm": ("ViT(width=32,depth=2,heads=2,mlp=48)/16",
        {"stem": "hmlp", "stem_norm": "batch"}),
    "hybrid": ("R(1)+ViT(width=32,depth=1,heads=2,mlp=48)/8", {}),
    "axial ResNet": ("Axial-ResNet-(1-1)", {}),
}  # fmt: skip
WORDS = {
    "attention": (".qkv.", ".project.", ".q.", ".kv.", "positions", "attend", "classify"),
    "ffn": (".expand.", ".contract.", "conv1", "classify"),
    "norms": (".norm", "norm.", "norms.", ".scale", "gn"),
    "head": ("classify.",),
    "small": ("token", "registers", ".scale", "queries", "stem.places", "relative"),
    "stem": ("stem.", "body.root", "running"),
    "all": ("",),
    "nothing": (),
}


def tiny(name: str = TINY, seed: int = 0, size: int = 16, classes: int = 3, **choices: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return nudged(vitlab.create(name, classes, size, generator=generator, **choices), "", seed=seed)


def nudged(model: Any, *parts: str, seed: int = 1) -> Any:
    """A copy with noise on each tensor whose name contains one of these words."""
    generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in other.state_dict().items():
            if tensor.is_floating_point() and any(part in name for part in parts):
                noise = 0.1 * (torch.rand(tensor.shape, generator=generator) - 0.5)
                tensor.add_(noise.to(tensor))
    return other.eval()


def noise(count: int, size: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def separately(models: dict[str, Any], images: Iterable[Tensor], tasks: list[str]) -> list[Tensor]:
    """The scores of each image by its own model."""
    return [models[t](image[None])[0] for t, image in zip(tasks, images, strict=True)]


def check(multi: MultiTask, models: dict[str, Any], images: Any, tasks: list[str]) -> None:
    for got, want in zip(multi(images, tasks), separately(models, images, tasks), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    for task, image, got in zip(tasks, images, multi.features(images, tasks), strict=True):
        with torch.inference_mode():
            want = models[task].features(image[None])[0]
            same = multi.body(task).features(image[None])[0]
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
        torch.testing.assert_close(same, want, rtol=0, atol=1e-5)


def mixed(names: Iterable[str], count: int) -> list[str]:
    """Names in a random order, some of them never."""
    names = list(names)
    drawn = torch.randint(len(names), (count,), generator=torch.Generator().manual_seed(3))
    return [names[place] for place in drawn]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_scores_are_those_of_the_separate_models(kind: str) -> None:
    """Tasks that changed attention, FFNs, norms, the head, single tensors, everything, nothing."""
    name, choices = ARCHITECTURES[kind]
    size = 32 if "R" in name else 16
    base = tiny(name, size=size, **choices)
    models = {word: nudged(base, *parts, seed=5) for word, parts in WORDS.items()}
    multi = MultiTask(base, models)
    check(multi, models, noise(9, size), mixed(models, 9))
    for word in ("attention", "norms", "small") if kind == "parallel" else ("small",):
        check(multi, models, noise(3, size), [word, "nothing", word])
    check(multi, models, noise(1, size), ["all"])


def test_random_sets_of_tensors() -> None:
    """Whatever a task changed, and with whatever other tasks it shares a batch."""
    base = tiny(PARALLEL, layer_scale=0.5, registers=2, pool="attention", positions_at="every")
    names = list(base.state_dict())
    generator = torch.Generator().manual_seed(0)
    for trial in range(3):
        models = {}
        for task in "abcd":
            some = torch.rand(len(names), generator=generator) < 0.02 * 4**trial
            chosen = [n for n, taken in zip(names, some, strict=True) if taken]
            models[task] = nudged(base, *chosen, seed=trial) if chosen else nudged(base)
        check(MultiTask(base, models), models, noise(6), mixed("abcd", 6))


def test_tasks_with_classifiers_of_their_own_alone_pass_together() -> None:
    base = tiny(layer_scale=0.5)
    models = {name: nudged(base, "classify", seed=seed) for seed, name in enumerate("abc")}
    models["own"] = nudged(base, ".qkv.")
    multi, rows = MultiTask(base, models), list[int]()
    for name in models:
        multi.body(name).blocks[0].register_forward_hook(lambda *given: rows.append(len(given[2])))
    check(multi, models, noise(9), ["a", "own", "b", "a", "c", "own", "c", "a", "b"])
    assert multi.body("a") is multi.body("b") is not multi.body("own")
    assert rows[:4] == [7, 7, 7, 2]  # one pass of the three, whose block has three hooks


def test_memory_is_the_base_and_the_deltas() -> None:
    base = tiny(positions="bias", stem="hmlp", stem_norm="batch", name=TINY.replace("/8", "/16"))
    tensors = sum(tensor.nbytes for tensor in base.state_dict().values())
    places = sum(buffer.nbytes for name, buffer in base.named_buffers() if "places" in name)
    assert places
    multi = MultiTask(base)
    assert multi.bytes == tensors
    deltas = {
        str(seed): vitlab.delta(nudged(base, *WORDS[word], seed=seed), base)
        for seed, word in enumerate(["attention", "ffn", "head", "norms", "attention", "all"])
    }
    expected = tensors
    for name, change in deltas.items():
        multi.add(name, change)
        expected += change.bytes + places  # which follow from the grid
        assert multi.bytes == expected
    for name in deltas:
        multi.remove(name)
    assert multi.bytes == tensors


def test_heads_sizes_and_structures_of_their_own(tmp_path: Path) -> None:
    base = tiny(pre_logits=20)
    vitlab.save(base, tmp_path / "base")
    models = {
        "ten": vitlab.load(tmp_path / "base", classes=10),  # without the tanh layer
        "large": vitlab.load(tmp_path / "base", classes=4, image_size=24),
        "wide": vitlab.load(tmp_path / "base", image_size=(16, 24)),
        "mean": tiny(seed=4, pool="mean", layer_scale=0.5),
        "same": nudged(base, ".qkv."),
        "features": vitlab.load(tmp_path / "base", classes=0),
    }
    models = {name: nudged(model, "classify", seed=7) for name, model in models.items()}
    models["dropping"] = tiny(pre_logits=20, drop_path=0.5, dropout=0.5).train()
    multi = MultiTask(base, models)
    models["dropping"].eval()
    tasks = mixed(models, 24)
    images = [torch.randn(3, *models[task].config.size) for task in tasks]
    check(multi, models, images, tasks)
    assert {name: config.classes for name, config in multi.tasks.items()} == {
        name: model.config.classes for name, model in models.items()
    }
    assert multi(noise(0), []) == []


def test_lora_merged_and_files(tmp_path: Path) -> None:
    base = vitlab.load(vitlab.save(tiny(), tmp_path / "base"))
    lora = copy.deepcopy(base)
    inject(lora, torch.Generator().manual_seed(0), rank=2, alpha=4.0, targets="attention")
    with torch.no_grad():
        for weight in lora.parameters():
            weight.add_(0.01 * weight.requires_grad)
    models = {"lora": merged(lora), "file": nudged(base, ".mlp."), "folder": nudged(base, "head")}
    changes = {
        "lora": vitlab.delta(models["lora"], base),
        "file": str(vitlab.delta(models["file"], base).save(tmp_path / "file.safetensors")),
        "folder": vitlab.save(models["folder"], tmp_path / "folder"),
    }
    for source in (base, tmp_path / "base"):
        check(MultiTask(source, changes), models, noise(7), mixed(models, 7))


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.bfloat16, 0.02)])
def test_other_types(dtype: torch.dtype, near: float) -> None:
    base = tiny(layer_scale=0.5).to(dtype)
    models = {"a": nudged(base, ".qkv.", ".scale"), "b": nudged(base, ".mlp.")}
    models["single"] = nudged(base, "").float()  # its own type: images of its own as well
    images = [*noise(3).to(dtype), noise(1)[0]]
    for tasks, rows in ((["a", "b", "a"], images[:3]), (["b", "single"], images[2:])):
        got = MultiTask(base, models)(rows, tasks)
        torch.testing.assert_close(got, separately(models, rows, tasks), rtol=0, atol=near)
        assert got[0].dtype == dtype


def test_a_training_base_and_its_gradients_are_left_alone() -> None:
    base = tiny(dropout=0.5).train()
    kept = copy.deepcopy(base.state_dict())
    multi = MultiTask(base, {"a": nudged(base, ".qkv.")})
    assert torch.equal(multi(noise(2), ["a", "a"])[1], multi(noise(2), ["a", "a"])[1])
    assert all(module.training for module in base.modules())
    assert all(weight.requires_grad for weight in base.parameters())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in base.state_dict().items())


def test_tasks_come_and_go_while_batches_run() -> None:
    base = tiny()
    models = {name: nudged(base, ".qkv.", "head", seed=seed) for seed, name in enumerate("abc")}
    changes = {name: vitlab.delta(model, base) for name, model in models.items()}
    multi, stop, faults = MultiTask(base, {"a": changes["a"]}), threading.Event(), []
    images, tasks = noise(4), ["a", "b", "a", "b"]
    want = separately(models, images, tasks)

    def batches() -> None:
        multi(images[::2], ["a", "a"])
        begun.wait(PATIENCE)
        while not stop.is_set():
            try:
                got = multi(images, tasks)
                if not all((g - w).abs().max() < 1e-5 for g, w in zip(got, want, strict=True)):
                    faults.append("other scores")
            except OptionError as error:  # no `b` at that moment
                if "unknown task 'b'" not in str(error):
                    faults.append(str(error))

    begun = threading.Barrier(3)
    threads = [threading.Thread(target=batches) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(PATIENCE)
    for _ in range(4):
        multi.add("b", changes["b"])
        multi.add("c", models["c"])
        multi.remove("b")
        multi.remove("c")
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert set(multi.tasks) == {"a"}


def test_what_is_refused() -> None:
    base, other = tiny(), tiny(seed=8)
    multi = MultiTask(base, {"cars": nudged(base, ".qkv."), "pets": nudged(base, "head")})
    strange = vitlab.delta(nudged(other, ".qkv."), other)
    with pytest.raises(WeightsError) as caught:
        multi.add("birds", strange)
    assert re.fullmatch(
        r"task 'birds' has the wrong base: its delta was made from \S+ \(fingerprint "
        rf"{strange.base.fingerprint[:12]}\), not from \S+ \(fingerprint [0-9a-f]{{12}}\)",
        str(caught.value),
    )
    wrong: list[tuple[Any, str]] = [
        (lambda: multi.add("cars", base), "there is a task 'cars' already: remove it first"),
        (lambda: multi.remove("car"), "unknown task 'car': did you mean cars?"),
        (lambda: multi(noise(1), ["dogs"]), "unknown task 'dogs': choose from cars, pets"),
        (lambda: multi(noise(2), ["cars"]), "2 images need as many tasks, not 1"),
        (
            lambda: multi(noise(1, 24), ["pets"]),
            "an image of task 'pets' must be (3, 16, 16), not (3, 24, 24)",
        ),
    ]
    for act, message in wrong:
        with pytest.raises(OptionError) as found:
            act()
        assert str(found.value) == message
    multi.remove("cars")
    multi.add("cars", base)
    assert set(multi.tasks) == {"cars", "pets"}
