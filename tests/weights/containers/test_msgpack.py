"""Flax's MessagePack: against a small writer that follows the specification and flax's layout."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open_weights import open_source


def head(kinds: tuple[int, int, int, int], small: int, count: int) -> bytes:
    """The smallest header for a count: within the first byte, or in 1, 2 or 4 bytes."""
    fixed, one, two, four = kinds
    if count < small:
        return bytes([fixed | count])
    if one and count < 2**8:
        return bytes([one, count])
    return struct.pack(">BH", two, count) if count < 2**16 else struct.pack(">BI", four, count)


def packed(value: Any) -> bytes:
    """MessagePack as flax.serialization writes it."""
    match value:
        case None | False | True:
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int():
            return bytes([value]) if 0 <= value < 128 else struct.pack(">Bq", 0xD3, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            return head((0xA0, 0xD9, 0xDA, 0xDB), 32, len(value.encode())) + value.encode()
        case bytes():
            return head((0, 0xC4, 0xC5, 0xC6), 0, len(value)) + value
        case list() | tuple():
            items = b"".join(map(packed, value))
            return head((0x90, 0, 0xDC, 0xDD), 16, len(value)) + items
        case dict():
            items = b"".join(packed(k) + packed(v) for k, v in value.items())
            return head((0x80, 0, 0xDE, 0xDF), 16, len(value)) + items
        case torch.Tensor():  # NumPy has no bfloat16
            raw = value.view(torch.uint16).numpy().tobytes()
            return extension(1, packed((list(value.shape), "bfloat16", raw)))
        case np.generic():
            return extension(3, packed(([], value.dtype.name, value.tobytes())))
        case np.ndarray():
            return extension(1, packed((list(value.shape), value.dtype.name, value.tobytes())))
        case complex():
            return extension(2, packed([value.real, value.imag]))
    raise TypeError(value)


def extension(code: int, content: bytes) -> bytes:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}
    if len(content) in fixed:
        return bytes([fixed[len(content)], code]) + content
    return head((0, 0xC7, 0xC8, 0xC9), 0, len(content)) + bytes([code]) + content


def tree() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    large = generator.normal(size=(3, 50)).astype(np.float32)
    flat = large.reshape(-1)
    chunks = {"0": flat[:100], "1": flat[100:]}
    return {
        "params": {
            "blocks_0": {"kernel": generator.normal(size=(2, 3)), "bias": np.zeros(3, np.float16)},
            "half": torch.randn(4, 5).to(torch.bfloat16),
            "large": {"__msgpack_chunked_array__": True, "shape": {"0": 3, "1": 50},
                      "chunks": chunks},
            "whole": np.arange(5),
            "scalar": np.float32(2.5),
            "count": np.int64(3),
            "empty": np.zeros((0, 3), np.float32),
        },
        "step": 1000, "name": "x" * 40, "values": list(range(20)), "z": 1j, "none": None,
        "many": {str(n): -n for n in range(20)},
    }  # fmt: skip


def test_every_array_of_a_tree(tmp_path: Path) -> None:
    content = tree()
    (tmp_path / "m.msgpack").write_bytes(packed(content))
    source, params = open_source(tmp_path / "m.msgpack"), content["params"]
    assert source.kind == "msgpack"
    expected = {
        "params/blocks_0/kernel": params["blocks_0"]["kernel"],
        "params/blocks_0/bias": params["blocks_0"]["bias"],
        "params/half": params["half"].float().numpy(),
        "params/large": np.concatenate([*params["large"]["chunks"].values()]).reshape(3, 50),
        "params/whole": params["whole"],
        "params/scalar": params["scalar"],
        "params/count": params["count"],
        "params/empty": params["empty"],
    }
    assert set(source.shapes) == set(expected)
    assert source.counters == ("params/count",)
    for name, array in expected.items():
        assert source.shapes[name] == array.shape
        assert np.array_equal(source.read(name, exact=name != "params/half").numpy(), array)


@pytest.mark.parametrize("prefix", ["", "params"])
def test_a_model_of_google_in_flax(prefix: str, tmp_path: Path) -> None:
    """The same arrays as in an .npz, nested by their names."""
    model = vitlab.create("ViT-Ti1/8", 3, 16, gelu="tanh")
    vitlab.save(model, tmp_path / "g", to="google")
    nested: dict[str, Any] = {"params": {}} if prefix else {}
    with np.load(tmp_path / "g" / "model.npz") as arrays:
        for name, array in arrays.items():
            node = nested["params"] if prefix else nested
            *parents, last = name.split("/")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = array
    (tmp_path / "flax_model.msgpack").write_bytes(packed(nested))
    want, got = (
        vitlab.load(tmp_path / "g" / "model.npz"),
        vitlab.load(tmp_path / "flax_model.msgpack"),
    )
    assert got.config == want.config
    assert all(torch.equal(t, want.state_dict()[n]) for n, t in got.state_dict().items())


def test_models_of_transformers_are_told(tmp_path: Path) -> None:
    names = {"projection": {"kernel": np.zeros((8, 8, 3, 4), np.float32)}}
    content = {"vit": {"embeddings": {"patch_embeddings": names}}}
    (tmp_path / "flax_model.msgpack").write_bytes(packed(content))
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(WeightsError, match=r"a Flax model of transformers, .* model.safetensors"):
        vitlab.load(tmp_path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (extension(1, packed(([2], "float32", b"1234"))), "does not fit its bytes"),
        (extension(1, packed(([-1], "float32", b"1234"))), "does not fit its bytes"),
        (extension(1, packed(([2**40, 2**40], "float32", b"1234"))), "does not fit its bytes"),
        (extension(1, packed(([1], "object", b"1234"))), "does not fit its bytes"),
        (extension(1, packed(([1], "float32", b"1234")) + b"\xc0"), "does not fit its bytes"),
        (b"\xc6\xff\xff\xff\xff", "is cut short"),
        (b"\xdd\xff\xff\xff\xff", "is cut short"),
        (b"\xc1", "an unknown kind of value, 0xc1"),
        (b"\x91" * 100, "too deep"),
        (packed({"__msgpack_chunked_array__": True, "shape": {}, "chunks": {}}), "chunks"),
    ],
)
def test_files_that_lie(array: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.msgpack").write_bytes(b"\x81" + packed("x") + array)
    with pytest.raises(WeightsError, match=message):
        open_source(tmp_path / "m.msgpack")


def test_changed_and_cut_files_give_only_our_errors(tmp_path: Path) -> None:
    whole, generator = packed(tree()), np.random.default_rng(4)
    for round in range(300):
        changed = bytearray(whole)
        for _ in range(1 + round % 3):
            changed[generator.integers(0, len(changed))] = generator.integers(0, 256)
        changed = changed[: generator.integers(1, len(changed))] if round % 5 == 0 else changed
        (tmp_path / "m.msgpack").write_bytes(changed)
        try:
            source = open_source(tmp_path / "m.msgpack")
            for name in source.shapes:
                source.read(name)
        except WeightsError as error:
            assert "\n" not in str(error)
