"""Saved models in several files: bit for bit, as the hub's readers expect them, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import load_torch_model
from safetensors.torch import load_file, save_file

import vitlab
from made_models import equal, tiny
from vitlab.weights.sharded import INDEX, TENSORS, shard_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return vitlab.save(tiny(), tmp_path / "m", shard_bytes=4_000)


@pytest.mark.parametrize(("limit", "shards"), [(10**9, 1), (13_000, 3), (1, 32)])
def test_round_trip_is_exact_at_every_limit(tmp_path: Path, limit: int, shards: int) -> None:
    model = tiny()
    folder = vitlab.save(model, tmp_path / "m", shard_bytes=limit)
    assert equal(vitlab.load(folder), model)
    names = sorted(file.name for file in folder.iterdir())
    if shards == 1:
        assert names == ["config.json", TENSORS]
        return
    files = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    assert names == ["config.json", *files, INDEX]
    sizes = [sum(t.nbytes for t in load_file(folder / file).values()) for file in files]
    assert all(size <= limit for size in sizes) or limit == 1
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(sizes)
    assert shard_files(folder / INDEX) == {k: folder / v for k, v in index["weight_map"].items()}
    vitlab.save(tiny(), folder)  # which leaves no old shards
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", TENSORS]


def test_the_hub_library_reads_the_shards(tmp_path: Path) -> None:
    """Into a model whose tensors have our names in the file: timm has no three branches."""
    model, other = (vitlab.create("ViT-Ti1x3/8", 3, 16) for _ in range(2))
    folder = vitlab.save(model, tmp_path / "m", shard_bytes=40_000)
    assert not equal(other, vitlab.load(folder))
    load_torch_model(other, folder, strict=True, safe=True)
    assert equal(other, vitlab.load(folder))


def listed(where: Any, **more: Any) -> Callable[[Path], None]:
    """Change where the index says that a tensor is."""

    def spoil(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"] |= {"norm.bias": where or index["weight_map"]["norm.bias"]}
        index["weight_map"] |= dict.fromkeys(more, index["weight_map"]["norm.bias"])
        (folder / INDEX).write_text(json.dumps(index))

    return spoil


def first(folder: Path) -> Path:
    return min(folder.glob("model-*"))


def link(folder: Path) -> None:
    shard, elsewhere = first(folder), folder.parent / "elsewhere"
    shard.rename(elsewhere)
    shard.symlink_to(elsewhere)


def twice(folder: Path) -> None:
    one, two = sorted(folder.glob("model-*"))[:2]
    save_file(load_file(one) | dict(list(load_file(two).items())[:1]), one)


def not_held(folder: Path) -> None:
    save_file(dict(list(load_file(first(folder)).items())[1:]), first(folder))


def huge_header(folder: Path) -> None:
    content = first(folder).read_bytes()
    first(folder).write_bytes((11 * 2**20).to_bytes(8, "little") + content[8:])


SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (listed("/etc/passwd"), "beside their index"),
    (listed("../m.safetensors"), "beside their index"),
    (listed("..\\m.safetensors"), "beside their index"),
    (listed("a\n.safetensors"), "beside their index"),
    (listed("pickle.bin"), "beside their index"),
    (listed(3), "other than file names"),
    (listed("", more=1), "does not contain tensor"),
    (lambda folder: first(folder).unlink(), "missing"),
    (link, "is a link"),
    (twice, "which the index does not list for it"),
    (
        lambda f: save_file(load_file(first(f)) | {"more": torch.zeros(1)}, first(f)),
        "'more', which the index does not list",
    ),
    (not_held, "does not contain tensor"),
    (lambda f: (f / INDEX).write_text('{"weight_map": {}}'), "must list 1 to 100,000 tensors"),
    (lambda f: (f / INDEX).write_text("[" * 100_000), "is damaged: "),
    (huge_header, "its header has an implausible 11,534,336 bytes"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILT)
def test_what_an_index_may_not_name(folder: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(folder)
    with pytest.raises(vitlab.UserError) as caught:
        vitlab.load(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
