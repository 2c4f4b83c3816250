"""`vitlab.embed`: every image once, with its own features, whatever happened on the way."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import vitlab
from conftest import photo
from distributed.ranks import on_ranks
from evaluation.small_models import noisy
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.loading.crops import fitted_image
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, DiskError, OptionError
from vitlab.evaluation import embedding, infer
from vitlab.evaluation.shards import ShardFolder
from vitlab.locks import Lock


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16 images."""
    monkeypatch.setattr(infer, "BATCH", 8)
    monkeypatch.setattr(embedding, "ROWS", 16)


@pytest.fixture
def model() -> vitlab.VisionTransformer:
    return noisy()


def embedded(model: vitlab.VisionTransformer, data: Path, out: Path, **how: object) -> dict:
    return vitlab.embed(model, str(data), out, workers=0, **how)


def rows(file: Path) -> dict[str, list]:
    return parquet.read_table(file, page_checksum_verification=True).to_pydict()


def pixels(model: vitlab.VisionTransformer, files: list[str]) -> torch.Tensor:
    """Each file decoded by itself."""
    from vitlab.data.labels import SingleLabels
    from vitlab.data.sources.image_files import ImageFiles

    source, spec = (
        Images.of(ImageFiles(Path(), files), SingleLabels.blank(len(files), 1), ("x",)),
        model.config,
    )
    each = [fitted_image(source.image(number), spec) for number in range(len(files))]
    return normalize(torch.from_numpy(np.stack(each)), spec)


def test_each_row_has_its_path_label_split_and_features(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    found = embedded(model, photos, tmp_path / "x.parquet")
    table = rows(tmp_path / "x.parquet")
    splits = open_to_learn(str(photos))
    for split, source in splits.parts.items():
        own = [place for place, name in enumerate(table["split"]) if name == split]
        assert [table["path"][place] for place in own] == [
            source.name(n) for n in range(len(source))
        ]
    assert sorted(table["path"]) == sorted(str(each) for each in photos.rglob("*.png"))
    assert table["label"] == [Path(path).parent.name for path in table["path"]]
    with torch.inference_mode():
        expected = model.features(pixels(model, table["path"]))
    np.testing.assert_allclose(np.array(table["features"]), expected, atol=1e-5)
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.schema_arrow.field("features").type == pyarrow.list_(pyarrow.float32(), 16)
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert (groups[:3], sum(groups), max(groups)) == ([16] * 3, 60, 16)
    assert found["images"] == 60
    assert found["shape"] == [16]
    assert [each.name for each in tmp_path.iterdir() if "x.parquet" in each.name] == ["x.parquet"]


def test_what_is_taken_of_which_layers_is_in_the_file(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    """What is taken, test_taking.py has of every kind."""
    for name, layer in (("one", 1), ("two", [0, 1])):
        file = tmp_path / f"{name}.parquet"
        found = embedded(model, photos, file, what="patches", layer=layer)
        table, numbers = rows(file), np.atleast_1d(layer).tolist()
        with torch.inference_mode():
            layers = model.intermediates(pixels(model, table["path"]), numbers)
        expected = torch.cat(layers, -1)[:, 1:]
        np.testing.assert_allclose(np.array(table["features"]), expected, atol=1e-5)
        assert found["shape"] == list(expected.shape[1:])
    without = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", 0, 8, pool="mean")
    with pytest.raises(OptionError, match="has no class token: take mean or features"):
        embedded(without, photos, tmp_path / "no.parquet", what="both")


def test_half_the_bytes_and_what_the_file_says_of_itself(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    for dtype in ("fp32", "fp16"):
        embedded(model, photos, tmp_path / f"{dtype}.parquet", what="patches", dtype=dtype)
    half, full = (parquet.read_table(tmp_path / f"{d}.parquet") for d in ("fp16", "fp32"))
    kind = pyarrow.list_(pyarrow.list_(pyarrow.float16(), 16), 4)
    assert half.schema.field("features").type == kind
    values = [np.array(each["features"].to_pylist(), np.float32) for each in (half, full)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-4)
    about = json.loads(half.schema.metadata[b"vitlab.embedding"])
    expected = {"what": "patches", "layer": [], "dtype": "fp16", "dimension": 16, "norm": "final",
                "image_size": [8, 8], "precision": "fp32"}  # fmt: skip
    assert {key: about[key] for key in expected} == expected
    assert b"vitlab.source" not in parquet.ParquetFile(tmp_path / "fp16.parquet").metadata.metadata
    saved = vitlab.load(vitlab.save(model, tmp_path / "weights"))
    embedded(saved, photos, tmp_path / "saved.parquet")
    said = parquet.ParquetFile(tmp_path / "saved.parquet").metadata.metadata
    assert said[b"vitlab.source"].decode() == str(tmp_path / "weights")
    with torch.no_grad():
        model.norm.weight.mul_(1e6)
    with pytest.raises(DataError, match="is beyond fp16, which ends at 65,504: choose dtype=fp32"):
        embedded(model, photos, tmp_path / "large.parquet", dtype="fp16")


def test_damaged_images_are_listed_and_the_rest_is_there(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    (photos / "blue" / "003.png").write_bytes(b"no image")
    found = embedded(model, photos, tmp_path / "x.parquet")
    (note,) = found["notes"]
    assert "blue/003.png: not a JPEG" in note
    assert (found["images"], found["damaged"]) == (59, 1)
    assert len(rows(tmp_path / "x.parquet")["path"]) == 59
    said = parquet.read_metadata(tmp_path / "x.parquet").metadata[b"vitlab.damaged"]
    assert json.loads(said) == [note.removeprefix("skipped: ")]
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        embedded(model, photos, tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


def test_images_without_labels(model: vitlab.VisionTransformer, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(5):
        photo(number).save(flat / f"{number}.png")
    (flat / os.fsdecode(b"\xff.png")).write_bytes((flat / "0.png").read_bytes())
    embedded(model, flat, tmp_path / "a.parquet")
    table = rows(tmp_path / "a.parquet")
    assert table["label"] == [None] * 6
    assert table["split"] == ["all"] * 6
    assert table["path"][0].endswith("/0.png")
    assert table["path"][5].endswith(r"/\udcff.png")
    embedded(model, flat / "[12].png", tmp_path / "b.parquet")
    assert len(rows(tmp_path / "b.parquet")["path"]) == 2
    each = [["x"], ["x", "y"], []]  # several labels
    lines = [json.dumps({"path": f"{n}.png", "labels": names}) for n, names in enumerate(each)]
    (flat / "list.jsonl").write_text("\n".join(lines))
    embedded(model, flat / "list.jsonl", tmp_path / "c.parquet")
    table = rows(tmp_path / "c.parquet")
    names = dict(zip(table["path"], table["label"], strict=True))
    assert names == {str(flat / f"{n}.png"): own for n, own in enumerate(each)}
    (flat / "some.csv").write_text("path,label\n0.png,a\n1.png,\n")
    found = embedded(model, flat / "some.csv", tmp_path / "d.parquet")
    assert found["notes"] == []
    assert sorted(rows(tmp_path / "d.parquet")["label"], key=str) == [None, "a"]


def stopped(model: vitlab.VisionTransformer, photos: Path, out: Path, after: int) -> None:
    """Embed until some parts are written."""
    written = 0
    real = ShardFolder._write

    def write(self: ShardFolder, shard: object, batches: object) -> None:
        nonlocal written
        if written == after:
            raise KeyboardInterrupt
        written += 1
        real(self, shard, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardFolder, "_write", write)
        with pytest.raises(KeyboardInterrupt, match="run the same command again to continue"):
            embedded(model, photos, out)


def test_stopped_it_goes_on_where_it_was(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    embedded(model, photos, tmp_path / "whole.parquet")
    out = tmp_path / "x.parquet"
    stopped(model, photos, out, 2)
    parts = tmp_path / ".x.parquet.parts"
    first, second = sorted(parts.glob("*.parquet"))
    assert not out.exists()
    before = first.stat().st_mtime_ns
    words = r"\.x\.parquet\.parts has the parts of another job \(what=features there, mean here\)"
    with pytest.raises(DataError, match=f"{words}: delete that folder"):
        embedded(model, photos, out, what="mean")
    with (
        Lock(parts / "_lock", "").held(),
        pytest.raises(DiskError, match=r"another process is writing .*x\.parquet\.parts: wait"),
    ):
        embedded(model, photos, out)
    half = tmp_path / ".x.parquet.draft-abcdefgh"
    half.mkdir()
    second.write_bytes(second.read_bytes()[:-9])  # cut short
    stopped(model, photos, out, 2)
    assert first.stat().st_mtime_ns == before
    embedded(model, photos, out)
    assert rows(out) == rows(tmp_path / "whole.parquet")
    assert not parts.exists()
    assert not half.exists()
    with pytest.raises(DiskError, match="already exists: choose another --out"):
        embedded(model, photos, out)
    words = r"layer=\(1,\) applies only with what=token, mean, both, patches or tokens"
    with pytest.raises(OptionError, match=words):
        embedded(model, photos, tmp_path / "y.parquet", layer=1)


def together(model: vitlab.VisionTransformer, photos: Path, out: Path) -> dict:
    """One process of several."""
    found = embedded(model, photos, out, device="cpu")
    return {key: found[key] for key in ("images", "damaged")} if found else {}


def test_several_processes_write_the_same_file(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    (photos / "red" / "005.png").write_bytes(b"x")
    embedded(model, photos, tmp_path / "alone.parquet")
    work = partial(together, model, photos, tmp_path / "x.parquet")
    said = on_ranks(3, work, tmp_path / "ranks")
    assert [each.get("value", each) for each in said] == [{"images": 59, "damaged": 1}, {}, {}]
    assert (tmp_path / "x.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    said = on_ranks(2, work, tmp_path / "again")
    assert [(each["kind"], each["quiet"]) for each in said] == [
        ("DiskError", False),
        ("DiskError", True),
    ]


@pytest.mark.parametrize(
    "how", [{}, {"what": "tokens", "layer": 1}, {"what": "both", "layer": [1, 2], "dtype": "fp16"}]
)
def test_columns_in_memory_are_those_of_the_file(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path, how: dict
) -> None:
    (photos / "blue" / "damaged.png").write_bytes(b"no image")
    how = how | {"engine": "plain", "workers": 0}
    vitlab.embed(model, str(photos), tmp_path / "x.parquet", **how)
    found = vitlab.embed(model, str(photos), **how)
    table = rows(tmp_path / "x.parquet")
    assert [*found] == [*table]
    assert {key: found[key] for key in ("path", "label", "split")} == {
        key: table[key] for key in ("path", "label", "split")
    }
    stored = np.array(table["features"], found.features.dtype)
    assert found.features.dtype == (np.float16 if "dtype" in how else np.float32)
    assert np.array_equal(found.features, stored)


def test_columns_in_memory_need_no_pyarrow_and_have_a_limit(
    model: vitlab.VisionTransformer,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (photos / "blue" / "damaged.png").write_bytes(b"no image")
    found = vitlab.embed(model, str(photos), None, workers=0)
    assert found.features.shape == (60, 16)
    assert "skipped: " in capsys.readouterr().err
    fine = vitlab.create("ViT(width=256,depth=1,heads=2,mlp=8)/2", 0, 64)
    images = [np.zeros((64, 64, 3), np.uint8)] * 1000
    with pytest.raises(
        OptionError, match=r"1,000 images take 1\.0\d* GB of memory.*give out='FILE"
    ):
        vitlab.embed(fine, images, what="patches")
    with pytest.raises(OptionError, match="shard=0/2 needs a file or folder to share: give out"):
        vitlab.embed(model, str(photos), shard="0/2")


def test_columns_in_memory_of_images_without_labels(model: vitlab.VisionTransformer) -> None:
    images = [np.full((16, 16, 3), 20 * number, np.uint8) for number in range(5)]
    found = vitlab.embed(model, images)
    assert found.label == [None] * 5
    assert found.features.shape == (5, 16)
