"""PyTorch's distributed checkpoints: what its own loader gives, without its unpickler."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open_weights import open_source

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def saved(timm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an optimizer's state and plain values, as trainers save it."""
    folder = tmp_path_factory.mktemp("dcp") / "step-3"
    source = open_source(timm_folder)
    tensors = {name: source.read(name) for name in source.shapes}
    state = {"state": {0: {"exp_avg": torch.ones(192, 3, 8, 8), "step": torch.tensor(1.0)}}}
    content = {"model": tensors, "optimizer": state, "epoch": 3, "args": {"lr": 0.1}}
    dcp.save(content, checkpoint_id=folder)
    return folder


def test_the_model_in_a_distributed_checkpoint(saved: Path, tensors: dict[str, Tensor]) -> None:
    source = open_source(saved)
    assert source.kind == "distributed"
    assert source.wrapper == "model"
    assert set(source.shapes) == set(tensors)
    wanted = {"model": {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}}
    dcp.load(wanted, checkpoint_id=saved)  # PyTorch's own loader: this folder is trusted
    for name, tensor in wanted["model"].items():
        assert torch.equal(source.read(name), tensor)
    assert vitlab.load(saved).config.width == 192
    assert set(open_source(saved / ".metadata").shapes) == set(tensors)


def sharded(folder: Path, tensor: Tensor) -> Metadata:
    """One tensor in four chunks of two files, as four processes would save it."""
    folder.mkdir()
    chunks, places = [], {}
    info = dcp.filesystem._StorageInfo  # type: ignore[attr-defined]
    for number, (row, column) in enumerate([(0, 0), (0, 3), (2, 0), (2, 3)]):
        part = tensor[row : row + 2, column : column + 3].clone()
        file = f"__{number // 2}_0.distcp"
        with (folder / file).open("ab") as stream:
            start = stream.tell()
            torch.save(part, stream)
            length = stream.tell() - start
        chunks.append(ChunkStorageMetadata(torch.Size([row, column]), part.shape))
        places[MetadataIndex("w.0.x", (row, column), number)] = info(file, start, length)
    about = TensorStorageMetadata(TensorProperties(tensor.dtype), tensor.shape, chunks)
    return Metadata({"w.0.x": about}, {"w.0.x": ("w", "0.x")}, places)


def write(folder: Path, metadata: Metadata) -> Path:
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_in_several_files(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    folder = write(tmp_path / "c", sharded(tmp_path / "c", tensor))
    loaded = {"w": {"0.x": torch.zeros_like(tensor)}}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["w"]["0.x"], tensor)
    source = open_source(folder)
    assert source.shapes == {"0.x": (4, 6)}
    assert torch.equal(source.read("0.x", exact=True), tensor)


def test_checkpoints_that_lie(tmp_path: Path) -> None:
    folder, tensor = tmp_path / "c", torch.arange(24.0).reshape(4, 6)
    metadata = sharded(folder, tensor)

    def lie(about: Any) -> WeightsError:
        changed = pickle.loads(pickle.dumps(metadata))
        about(changed)
        write(folder, changed)
        with pytest.raises(WeightsError) as caught:
            open_source(folder).read("0.x")
        assert "\n" not in str(caught.value)
        return caught.value

    def first(changed: Metadata) -> Any:
        return next(iter(changed.storage_data.values()))

    def put(name: str, value: object) -> Any:
        return lambda changed: setattr(first(changed), name, value)

    shutil.copy(folder / "__0_0.distcp", tmp_path / "x.distcp")
    assert "is not a .distcp file in it" in str(lie(put("relative_path", "../x.distcp")))
    assert "is not a .distcp file in it" in str(lie(put("relative_path", "/etc/passwd")))
    assert "shorter than its parts" in str(lie(put("length", 10**12)))
    assert "shorter than its parts" in str(lie(put("offset", -1)))
    assert "can convert it with python -m" in str(lie(put("transform_descriptors", ["zstd"])))
    about = "w.0.x"

    def overlap(changed: Metadata) -> None:
        for info in changed.storage_data.values():
            info.offset, info.length = 0, (folder / info.relative_path).stat().st_size

    assert "shorter than its parts" in str(lie(overlap))
    with (folder / "__0_0.distcp").open("ab") as stream:
        start = stream.tell()
        torch.save(torch.zeros(1, 3), stream)  # which would fill two rows
        length = stream.tell() - start

    def another(changed: Metadata) -> None:
        first(changed).offset, first(changed).length = start, length

    assert f"the part at {start} is another one" in str(lie(another))
    large = torch.Size([10**6, 10**6])
    assert "parts of tensor" in str(
        lie(lambda m: setattr(m.state_dict_metadata[about], "size", large))
    )
    assert "does not fit" in str(
        lie(lambda m: setattr(m.state_dict_metadata[about].chunks[0], "sizes", large))
    )
    wide = torch.Size([2, 4])
    assert "does not fit" in str(
        lie(lambda m: setattr(m.state_dict_metadata[about].chunks[1], "sizes", wide))
    )
    assert "parts of tensor" in str(lie(lambda m: m.state_dict_metadata[about].chunks.pop()))
    assert "is missing" in str(lie(lambda m: m.storage_data.popitem()))
    assert "cannot be read" in str(lie(lambda m: setattr(m, "storage_data", None)))


class Trap:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.file, "sprung"))


@pytest.mark.parametrize("where", ["planner_data", "storage_data", "state_dict_metadata", "all"])
def test_booby_trapped_metadata_does_not_spring(where: str, tmp_path: Path) -> None:
    folder, trap = tmp_path / "c", tmp_path / "sprung"
    metadata = sharded(folder, torch.zeros(4, 6))
    if where == "all":
        (folder / ".metadata").write_bytes(pickle.dumps(Trap(trap)))
    else:
        getattr(metadata, where)["trap"] = Trap(trap)
        write(folder, metadata)
    try:
        open_source(folder)
    except WeightsError as error:
        assert "\n" not in str(error)
    assert not trap.exists()
    pickle.loads((folder / ".metadata").read_bytes())  # the trap is a real one
    assert trap.exists()


def test_booby_trapped_chunks_do_not_spring(tmp_path: Path) -> None:
    folder, trap = tmp_path / "c", tmp_path / "sprung"
    metadata = sharded(folder, torch.zeros(4, 6))
    for file in sorted(folder.glob("*.distcp")):
        size = file.stat().st_size
        torch.save(Trap(trap), file)
        with file.open("ab") as stream:
            stream.write(bytes(size))
    write(folder, metadata)
    with pytest.raises(WeightsError, match="unsafe to load") as caught:
        open_source(folder).read("0.x")
    assert "trust" not in str(caught.value)
    assert not trap.exists()


def test_changed_metadata_gives_only_our_errors(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(saved, folder)
    whole, generator = (folder / ".metadata").read_bytes(), np.random.default_rng(3)
    for round in range(80):
        changed = bytearray(whole)
        for _ in range(1 + round % 3):
            changed[generator.integers(0, len(changed))] = generator.integers(0, 256)
        changed = changed[: generator.integers(1, len(changed))] if round % 5 == 0 else changed
        (folder / ".metadata").write_bytes(changed)
        try:
            open_source(folder)
        except WeightsError as error:
            assert "\n" not in str(error)


def test_changed_chunks_give_only_our_errors(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(saved, folder)
    file = next(folder.glob("*.distcp"))
    whole, generator = file.read_bytes(), np.random.default_rng(5)
    starts = [place for place in range(len(whole)) if whole.startswith(b"PK\x03\x04", place)]
    for _ in range(40):
        changed = bytearray(whole)
        for start in starts:
            changed[start + generator.integers(0, 200)] = generator.integers(0, 256)
        file.write_bytes(changed)
        source = open_source(folder)
        for name in ("norm.bias", "head.bias"):
            try:
                source.read(name)
            except WeightsError as error:
                assert "\n" not in str(error)
                assert "trust" not in str(error)
