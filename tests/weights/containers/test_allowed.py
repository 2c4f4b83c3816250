"""Values beside tensors: plain ones come through, and nothing that a file names is ever called."""

import argparse
import collections
import datetime
import os
import pathlib
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open import open_source
from vitlab.weights.containers.pickles import ALLOWED, read_pickle


class AttributeDict(dict):  # type: ignore[type-arg]
    """As Lightning's, under its name."""


def pretend(patch: pytest.MonkeyPatch, cls: type, module: str) -> None:
    """Let a class be one of a library that is not installed."""
    words = module.split(".")
    for place in range(1, len(words) + 1):
        name = ".".join(words[:place])
        patch.setitem(sys.modules, name, types.ModuleType(name))
    patch.setattr(cls, "__module__", module)
    patch.setattr(sys.modules[module], cls.__name__, cls, raising=False)


def test_plain_values_are_recorded_and_others_are_none(
    tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, AttributeDict, "lightning.fabric.utilities.data")
    history: Any = collections.defaultdict(list)
    history["loss"].append(np.float64(0.5))
    content = {
        "model": tensors,
        "best_acc": np.float64(0.75),
        "step": np.int64(7),
        "mean": np.array([[0.5, 0.25]], dtype=np.float32, order="F"),
        "args": argparse.Namespace(arch="vit_tiny", out=pathlib.Path("/a/b"), size=[16, 16]),
        "more": types.SimpleNamespace(lr=0.1, inner=types.SimpleNamespace(kind=torch.float16)),
        "windows": pathlib.PureWindowsPath("c:/x/y"),
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "took": datetime.timedelta(hours=1),
        "history": history,
        "counts": collections.Counter("aab"),
        "ordered": collections.OrderedDict(a=1),
        "size": torch.Size([2, 3]),
        "device": torch.device("cuda:1"),
        "hyper_parameters": AttributeDict(width=16),
        "version": torch.__version__,
    }
    torch.save(content, tmp_path / "c.pth")
    monkeypatch.undo()
    record = read_pickle(tmp_path / "c.pth", zipped=True).root
    assert record.pop("model").keys() == tensors.keys()
    dropped = ("best_acc", "step", "mean", "windows", "when", "took", "version", "device")
    assert record == {
        **dict.fromkeys(dropped),
        "args": {"arch": "vit_tiny", "out": None, "size": [16, 16]},
        "more": {"lr": 0.1, "inner": {"kind": None}},
        "history": {"loss": [None]},
        "counts": {"a": 2, "b": 1},
        "ordered": {"a": 1},
        "size": [2, 3],
        "hyper_parameters": {"width": 16},
    }


class Call:
    """Pickles as a call of anything, with any arguments and any state."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.made = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.made


def touch(file: Path) -> Call:
    return Call(os.system, f"touch {file}")


HOSTILE: dict[str, Any] = {
    "plain": lambda trap: trap,
    "eval": lambda trap: Call(eval, "1"),
    "getattr": lambda trap: Call(getattr, argparse.Namespace(), "x"),
    "a factory that is called": lambda trap: Call(collections.defaultdict, trap),
    "namespace": lambda trap: argparse.Namespace(inner=trap),
    "date": lambda trap: Call(datetime.datetime, trap),
    "scalar": lambda trap: Call(np._core.multiarray.scalar, np.dtype("f8"), trap),
    "dtype": lambda trap: Call(np.dtype, trap),
    "array": lambda trap: Call(np._core.multiarray._reconstruct, trap, (0,), b"b"),
    "array's state": lambda trap: Call(
        np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, (1,), trap)
    ),
    "array of objects": lambda trap: np.array([trap], dtype=object),
    "chain": lambda trap: Call(collections.OrderedDict, Call(map, os.system, ["true"])),
    "open": lambda trap: Call(open, "/etc/passwd"),
    "partial": lambda trap: Call(__import__, "os"),
    "module": lambda trap: Call(nn.Linear, 1, 1),
}


@pytest.mark.parametrize(("zipped", "case"), [(n % 2 == 0, e) for n, e in enumerate(HOSTILE)])
def test_hostile_pickles_run_nothing(
    case: str, zipped: bool, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """The same file does run its code where pickles are trusted: the trap is a real one."""
    file, sprung = tmp_path / "c.pth", tmp_path / "sprung"
    content = {"model": tensors, "args": HOSTILE[case](touch(sprung))}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match="unsafe to load") as caught:
        open_source(file)
    assert not sprung.exists()
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)
    if case == "plain":
        pickle.loads(pickle.dumps(touch(sprung)))
        assert sprung.exists()


ARGUMENTS: list[tuple[Any, ...]] = [
    (), (None,), (b"\xff" * 10,), ("x", 3), (10**30,), ([], {}, object()), (-1, "\0"),
    (b"\x00" * 10, object()), ("f8", object()), ((2, 2), b"1234"),
]  # fmt: skip


@pytest.mark.parametrize("stand_in", dict.fromkeys(e for e, _ in ALLOWED))
def test_stand_ins_take_any_arguments(stand_in: Any) -> None:
    """What stands in for a class stores or drops what it gets, and calls none of it."""
    for args in ARGUMENTS:
        made = stand_in(*args)
        plain = made == {}
        assert plain or type(made).__module__ == "vitlab.weights.containers.pickles"
        if hasattr(made, "__setstate__"):
            for state in (*args, args):
                made.__setstate__(state)


def test_states_that_lie(tmp_path: Path) -> None:
    """An array of NumPy is left out, whatever its shape, type and bytes say."""
    array = np._core.multiarray._reconstruct
    states = [(1, (4,), np.dtype("f4"), False, b"123"), (1, (1,), np.dtype("O8"), False, [1])]
    content = {str(n): Call(array, np.ndarray, (0,), b"b", state=s) for n, s in enumerate(states)}
    torch.save({"good": torch.zeros(2), **content}, tmp_path / "c.pth")
    assert set(open_source(tmp_path / "c.pth").shapes) == {"good"}


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


def test_a_whole_model_is_told_with_a_remedy_that_works(
    tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save(Mine(), tmp_path / "whole.pth")
    advice = r"contains \S*Mine in its pickle, .* unsafe .* torch.save\(model.state_dict\(\), FILE"
    with pytest.raises(WeightsError, match=advice):
        vitlab.load(tmp_path / "whole.pth")
    torch.save(vitlab.create("ViT-Ti1/8", 3, 16), tmp_path / "ours.pth")
    with pytest.raises(WeightsError, match=r"vitlab\.save\(model, FOLDER\)"):
        vitlab.load(tmp_path / "ours.pth")
    torch.save({"model": tensors, "tool": Mine()}, tmp_path / "inside.pth")
    with pytest.raises(WeightsError, match=r"contains \S*Mine in its pickle, .* unsafe to load"):
        vitlab.load(tmp_path / "inside.pth")
    torch.save(tensors, tmp_path / "good.pth")
    assert vitlab.load(tmp_path / "good.pth").config.width == 192


def test_other_pickles(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "four.pth", pickle_protocol=4)
    with pytest.raises(WeightsError, match="without pickle_protocol"):
        open_source(tmp_path / "four.pth")
    (tmp_path / "text.pkl").write_bytes(pickle.dumps({"a": "b"}, protocol=4))
    with pytest.raises(WeightsError, match="cannot be read"):
        open_source(tmp_path / "text.pkl")


def test_one_part_named_many_times_does_not_explode(tmp_path: Path) -> None:
    """A kilobyte that describes 2**60 values is refused, quickly; a ring ends."""
    content: Any = [0]
    for _ in range(60):
        content = [content, content]
    bomb: Any = {"a": 0}
    for _ in range(8):
        bomb = {str(n): bomb for n in range(10)}
    ring: dict[str, Any] = {"x": torch.zeros(1)}
    ring["self"] = ring
    for number, each in enumerate((content, ring)):
        torch.save({"good": torch.zeros(2), "more": each}, tmp_path / f"{number}.pth")
        assert "good" in open_source(tmp_path / f"{number}.pth").shapes
    torch.save({"good": torch.zeros(2), "more": bomb}, tmp_path / "bomb.pth")
    with pytest.raises(WeightsError, match="has more than 1,000,000 values"):
        open_source(tmp_path / "bomb.pth")
