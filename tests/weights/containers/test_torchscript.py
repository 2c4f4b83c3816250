"""TorchScript archives: the same tensors as `torch.jit.load` has, and no code of theirs runs."""

import io
import pickle
import pickletools
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open_weights import open_source
from vitlab.weights.containers.pickled import inert
from vitlab.weights.containers.pickled.inert import Global, Made, described

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Model(nn.Module):
    """Halves, integers, a view of other numbers, one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 2).half()
        self.blocks = nn.Sequential(Block(), Block())
        self.again = self.patch
        self.register_buffer("input_resolution", torch.tensor(224))
        self.register_buffer("part", torch.arange(24.0).reshape(4, 6)[1:3].T)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("script") / "m.pt"
    torch.manual_seed(1)
    torch.jit.save(torch.jit.trace(Model().eval(), torch.zeros(1)), file)
    return file


def test_tensors_are_those_of_the_program(archive: Path) -> None:
    source, oracle = open_source(archive), torch.jit.load(archive).state_dict()
    assert source.kind == "torchscript"
    assert set(source.shapes) == set(oracle)
    assert source.counters[0] == "input_resolution"
    for name in source.shapes:
        assert source.shapes[name] == tuple(oracle[name].shape)
        assert torch.equal(source.read(name, exact=True), oracle[name])


def test_a_vit_in_an_archive(timm_folder: Path, tmp_path: Path) -> None:
    """Under timm's names, as people script their models."""
    want = vitlab.load(timm_folder)

    class Holder(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    root = Holder()
    for name, tensor in {
        n: open_source(timm_folder).read(n) for n in open_source(timm_folder).shapes
    }.items():
        *parents, last = name.split(".")
        node: nn.Module = root
        for parent in parents:
            if not hasattr(node, parent):
                node.add_module(parent, Holder())
            node = getattr(node, parent)
        node.register_parameter(last, nn.Parameter(tensor))
    torch.jit.save(torch.jit.trace(root, torch.zeros(1)), tmp_path / "m.pt")
    got = vitlab.load(tmp_path / "m.pt", mean=0.5, std=0.5)
    assert all(torch.equal(t, want.state_dict()[n]) for n, t in got.state_dict().items())


def rewritten(archive: Path, file: Path, changes: dict[str, bytes], compressed: str = "") -> Path:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            last = name.partition("/")[2]
            how = zipfile.ZIP_DEFLATED if compressed and last.startswith(compressed) else None
            new.writestr(name, changes.get(last, old.read(name)), compress_type=how)
    return file


def test_nothing_is_imported_or_called(archive: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    hostile = (
        b"\x80\x02c__torch__\nM\n)\x81}(X\x01\x00\x00\x00acposix\nsystem\nX"
        + len(f"touch {trap}").to_bytes(4, "little") + f"touch {trap}".encode() + b"\x85Rub."
    )  # fmt: skip
    made = described(hostile)
    assert isinstance(made, Made)
    assert made.state["a"].by == Global("posix.system")
    assert not trap.exists()
    file = rewritten(archive, tmp_path / "m.pt", {"data.pkl": hostile})
    with pytest.raises(WeightsError, match="contains no tensors"):
        open_source(file)
    assert not trap.exists()


def test_archives_that_lie(archive: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    with pytest.raises(WeightsError, match="a tensor does not fit its numbers"):
        open_source(rewritten(archive, file, {"data/0": b"12345"}))
    with pytest.raises(WeightsError, match="a tensor does not fit its numbers"):
        open_source(rewritten(archive, file, {}, "data/"))
    with pytest.raises(WeightsError, match="another order of bytes"):
        open_source(rewritten(archive, file, {"byteorder": b"big"}))
    with pytest.raises(WeightsError, match=r"data.pkl is missing or too large"):
        open_source(rewritten(archive, file, {"data.pkl": bytes(11 * 2**20)}))
    with pytest.raises(WeightsError, match="does not match its checksum"):
        content = bytearray(archive.read_bytes())
        content[content.index(b"\x80\x02c__torch__") + 5] ^= 1
        file.write_bytes(content)
        open_source(file)


def test_a_number_shown_many_times_is_not_expanded(tmp_path: Path) -> None:
    """One stored number can claim to be a tensor of any size."""

    class Expanded(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("large", torch.zeros(1).expand(10**6))

    torch.jit.save(torch.jit.trace(Expanded().eval(), torch.zeros(1)), tmp_path / "m.pt")
    with pytest.raises(WeightsError, match="a tensor does not fit its numbers"):
        open_source(tmp_path / "m.pt")


def test_one_module_named_many_times_does_not_explode(archive: Path, tmp_path: Path) -> None:
    """A module of two names for a module of two names, and so on, without a tensor."""
    new = b"c__torch__\nM\n)\x81"
    content = new + b"q\x00"
    for level in range(40):
        again = b"h" + bytes([level])
        content = new + b"}(X\x01\x00\x00\x00a" + content + b"X\x01\x00\x00\x00b" + again + b"ub"
        content += b"q" + bytes([level + 1])
    file = rewritten(archive, tmp_path / "m.pt", {"data.pkl": b"\x80\x02" + content + b"."})
    with pytest.raises(WeightsError, match="has too many modules, or too deep ones"):
        open_source(file)


def test_changed_pickles_give_only_our_errors(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as old:
        place = next(n for n in old.namelist() if n.endswith("data.pkl"))
        pickled = old.read(place)
    generator = np.random.default_rng(2)
    for round in range(80):
        changed = bytearray(pickled)
        for _ in range(1 + round % 3):
            changed[generator.integers(0, len(changed))] = generator.integers(0, 256)
        changed = changed[: generator.integers(1, len(changed))] if round % 5 == 0 else changed
        try:
            source = open_source(rewritten(archive, tmp_path / "m.pt", {"data.pkl": changed}))
            for name in source.shapes:
                source.read(name)
        except WeightsError as error:
            assert "\n" not in str(error)


class Thing:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [None, True, -3, 2**70, 1.5, "é", b"bytes", [1, [2]], (1,), (1, 2), (1, 2, 3, 4),
     {"a": {"b": 1}}, {1, 2}, [], {}, (), "x" * 300, b"y" * 300, [*range(2000)]],
)  # fmt: skip
def test_descriptions_of_plain_values_are_the_values(protocol: int, value: object) -> None:
    """Against Python's own reader; sets and old kinds of bytes are calls, and stay so."""
    try:
        got = described(pickle.dumps(value, protocol=protocol))
    except ValueError as error:
        assert isinstance(value, set)
        assert "unusual operation" in str(error)
        return
    assert got == value or isinstance(got, Made)
    assert not isinstance(got, Made) or isinstance(value, bytes | set)
    whole = described(pickle.dumps(Thing([value, value]), protocol=protocol))
    assert whole.name.endswith(".Thing")


def test_descriptions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="more than 100 oper"):
        patch.setattr(inert, "LARGEST", 100)
        described(b"\x80\x02" + b"N" * 200 + b".")
    for raw in (b"", b"\x80\x02", b"\x80\x02.", b"\x80\x02]a.", b"\x80\x02h\x07.", b"\x80\x02(t"):
        with pytest.raises((ValueError, IndexError, KeyError)):
            described(raw)
    assert pickletools.genops(io.BytesIO(b"\x80\x02N.")) is not None
    assert described(b"\x80\x02N.") is None
