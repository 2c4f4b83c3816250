"""`vitlab.search`: the answers of brute force, whatever the table's form; and hostile tables."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from sklearn.neighbors import NearestNeighbors

import vitlab
from conftest import photo
from evaluation.small_models import noisy
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.evaluation import search as searching
from vitlab.evaluation.search import FeatureTable

ABOUT = {
    "job": "embed", "model": "ViT-S/14", "weights": "0" * 64, "what": "features", "layer": [],
    "dtype": "fp32", "norm": "final", "image_size": [8, 8], "precision": "fp32",
}  # fmt: skip


def written(
    file: Path, values: np.ndarray, rows: int = 50, first: int = 0, **about: Any
) -> np.ndarray:
    """Write a table in the layout of `vitlab embed`; return its vectors."""
    count, width = values.shape
    told = ABOUT | {"dimension": width, "images": count} | about
    arrays = {
        "path": pyarrow.array([f"photos/{n + first}.png" for n in range(count)]),
        "label": pyarrow.array([f"class {(n + first) % 3}" for n in range(count)]),
        "split": pyarrow.array(["train"] * count),
        "features": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(values.reshape(-1)), width
        ),
    }
    table = pyarrow.table(arrays).replace_schema_metadata({"vitlab.embedding": json.dumps(told)})
    parquet.write_table(table, file, row_group_size=rows, compression="zstd")
    return values


def brute(values: np.ndarray, query: np.ndarray, k: int) -> list[int]:
    """Cosines of all rows in float64, best first, the earlier row first of equals."""
    x, q = values.astype(np.float64), query.astype(np.float64)
    scores = (x * q).sum(1) / np.maximum(np.sqrt((x**2).sum(1)) * np.sqrt((q**2).sum()), 1e-300)
    return np.lexsort((np.arange(len(x)), -scores.round(14)))[:k].tolist()


def rows_of(found: list[searching.Nearest]) -> list[list[int]]:
    return [[each.row for each in answer.neighbors] for answer in found]


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_brute_force_and_scikit_learn_agree(tmp_path: Path, kind: type) -> None:
    dtype = "fp16" if kind is np.float16 else "fp32"
    values = written(tmp_path / "x.parquet", drawn(501, 24).astype(kind), dtype=dtype)
    queries = drawn(7, 24, seed=1)
    found = vitlab.search(tmp_path / "x.parquet", queries, 20)
    assert rows_of(found) == [brute(values, each, 20) for each in queries]
    peer = NearestNeighbors(n_neighbors=20, metric="cosine", algorithm="brute")
    distances, indices = peer.fit(values.astype(np.float64)).kneighbors(queries)
    assert rows_of(found) == indices.tolist()
    scores = [[each.score for each in answer.neighbors] for answer in found]
    np.testing.assert_allclose(scores, 1 - distances, atol=1e-12)
    best = found[0].neighbors[0]
    assert (best.path, best.label) == (f"photos/{best.row}.png", f"class {best.row % 3}")
    assert (best.split, best.same, found[0].image) == ("train", False, "vector 0")


def test_one_file_and_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "ASKED", 4)
    values = written(tmp_path / "x.parquet", drawn(300, 8))
    (tmp_path / "parts").mkdir()
    for number, start in enumerate(range(0, 300, 100)):
        part = tmp_path / "parts" / f"train-{number:05d}.parquet"
        written(part, values[start : start + 100], 32, start, images=300)
    (tmp_path / "parts" / "_job.json").write_text("{}")
    queries = drawn(11, 8, seed=2)
    expected = vitlab.search(tmp_path / "x.parquet", queries, 299)
    assert rows_of(expected) == [brute(values, each, 299) for each in queries]
    assert vitlab.search(str(tmp_path / "parts"), queries, 299) == expected
    assert rows_of(vitlab.search(tmp_path / "x.parquet", queries[3], 2)) == [
        rows_of(expected)[3][:2]
    ]


def test_equal_rows_come_in_their_order_wherever_they_stand(tmp_path: Path) -> None:
    values = np.repeat(drawn(3, 20), 100, 0)[np.random.default_rng(3).permutation(300)]
    values[::7] *= 4  # of the same direction, in powers of two
    written(tmp_path / "x.parquet", values, rows=37)
    for query in (values[5], drawn(20, seed=4)):
        (found,) = vitlab.search(tmp_path / "x.parquet", query, 250)
        assert [each.row for each in found.neighbors] == brute(values, query, 250)


def test_differences_below_the_rounding_of_float32_count(tmp_path: Path) -> None:
    query = drawn(64)
    values = np.tile(query, (200, 1))
    order = np.random.default_rng(5).permutation(200)
    values[order, 0] += np.linspace(0, 2e-3, 200, dtype=np.float32)  # cosines from 1 - 1e-7 on
    written(tmp_path / "x.parquet", values)
    (found,) = vitlab.search(tmp_path / "x.parquet", query, 50)
    assert [each.row for each in found.neighbors] == brute(values, query, 50)


def test_zeros_extremes_and_what_is_no_number(tmp_path: Path) -> None:
    values = drawn(9, 4)
    values[1], values[2], values[3, 2], values[4, 0] = 0, values[0] * 1e20, np.nan, np.inf
    values[5] = values[0] * np.float32(1e-30)
    written(tmp_path / "x.parquet", values)
    (found,) = vitlab.search(FeatureTable.open(tmp_path / "x.parquet"), values[0], 9)
    rows = [one.row for one in found.neighbors]
    assert {*rows[:3]} == {0, 2, 5}
    assert {*rows} == {0, 1, 2, 5, 6, 7, 8}
    scores = {one.row: one.score for one in found.neighbors}
    assert scores[1] == 0
    assert scores[2] == pytest.approx(1)
    (found,) = vitlab.search(tmp_path / "x.parquet", np.zeros(4), 2)
    assert [(each.row, each.score) for each in found.neighbors] == [(0, 0), (1, 0)]
    with pytest.raises(OptionError, match="must be finite numbers"):
        vitlab.search(tmp_path / "x.parquet", values[3], 2)


def test_several_labels_and_texts_that_repeat(tmp_path: Path) -> None:
    """The paths are 1 GB in all, and a few kilobytes in the file."""
    values, told = drawn(2000, 4), ABOUT | {"dimension": 4, "images": 2000}
    columns = {
        "path": pyarrow.DictionaryArray.from_arrays(
            pyarrow.array([0, 1] * 1000, pyarrow.int32()), pyarrow.array(["x" * 10**6, "c"])
        ),
        "label": pyarrow.array([["a", "b"], []] * 1000),
        "split": pyarrow.array(["train"] * 2000),
        "features": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), 4),
    }
    table = pyarrow.table(columns).replace_schema_metadata({"vitlab.embedding": json.dumps(told)})
    parquet.write_table(table, tmp_path / "x.parquet", compression="zstd")
    assert (tmp_path / "x.parquet").stat().st_size < 10**6
    (found,) = vitlab.search(tmp_path / "x.parquet", values[3], 4)
    assert (found.neighbors[0].path, found.neighbors[0].label) == ("c", [])
    assert {*map(str, (each.label for each in found.neighbors))} <= {"['a', 'b']", "[]"}
    assert pyarrow.default_memory_pool().max_memory() < 0.9e9


@pytest.fixture
def model(tmp_path: Path) -> vitlab.VisionTransformer:
    return vitlab.load(vitlab.save(noisy(), tmp_path / "weights"))


@pytest.mark.parametrize(
    ("how", "size"), [({}, None), ({"what": "both", "layer": [1, 2], "dtype": "fp16"}, (8, 12))]
)
def test_photographs_are_found_by_the_weights_that_the_table_names(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path, how: dict[str, Any], size: Any
) -> None:
    table = tmp_path / "x.parquet"
    used = model if size is None else vitlab.load(tmp_path / "weights", image_size=size)
    vitlab.embed(used, photos, table, workers=0, **how)
    asked = [str(photos / "red" / "003.png"), str(photos / "blue" / "011.png")]
    found = vitlab.search(table, asked, 3)
    for answer, name in zip(found, asked, strict=True):
        first, *others = answer.neighbors
        assert (answer.image, first.path, first.same) == (name, name, True)
        assert first.label == Path(name).parent.name
        assert first.score == pytest.approx(1, abs=1e-4)
        assert not any(each.same for each in others)
    without = vitlab.search(table, asked, 2, weights=tmp_path / "weights", not_self=True)
    assert rows_of(without) == [rows[1:] for rows in rows_of(found)]
    (alone,) = vitlab.search(table, photo(3, 24, 32, 2), 1, weights=model)
    assert alone.neighbors[0].path == asked[0]
    vitlab.embed(used, photos, tmp_path / "parts", workers=0, part_images=16, **how)
    parts = vitlab.search(tmp_path / "parts", asked, 3)
    paths = [[{each.path for each in one.neighbors} for one in own] for own in (found, parts)]
    assert paths[0] == paths[1]


def test_damaged_photographs_are_named_and_others_answered(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    vitlab.embed(model, photos, tmp_path / "x.parquet", workers=0)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nx")
    good, other = (photos / "red" / f"{n}.png" for n in ("003", "004"))
    photo(7, 24, 32, 1).save(other)  # another image in its place is not the same
    asked = [str(tmp_path / "bad.png"), str(good), str(other)]
    bad, found, moved = vitlab.search(tmp_path / "x.parquet", asked, 60)
    assert "bad.png" in bad.error
    assert not bad.neighbors
    assert found.neighbors[0].path == str(good)
    assert str(other) in {each.path for each in moved.neighbors}
    assert not any(each.same for each in moved.neighbors)


def test_other_weights_and_weights_that_are_gone(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    table = tmp_path / "x.parquet"
    vitlab.embed(model, photos, table, workers=0)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(WeightsError, match=r"has other weights than .*x\.parquet"):
        vitlab.search(table, photos, weights=model)
    large = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/5", classes=3, image_size=10)
    with pytest.raises(WeightsError, match=r"the model .* has other weights than .*x\.parquet"):
        vitlab.search(table, photos, weights=large)
    with pytest.raises(WeightsError, match=r"no such file or folder: gone\.pth; --from"):
        vitlab.search(table, photos, weights="gone.pth")
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match=r"weights '.*weights' of .*x\.parquet are gone: --from"):
        vitlab.search(table, photos)
    assert len(vitlab.search(table, photos, 1, weights=tmp_path / "elsewhere")) == 60


def test_the_weights_are_found_beside_the_table(
    model: vitlab.VisionTransformer, photos: Path, tmp_path: Path
) -> None:
    """After both were moved, with another model in the old place."""
    moved = tmp_path / "moved"
    moved.mkdir()
    vitlab.embed(model, photos, moved / "x.parquet", workers=0)
    (tmp_path / "weights").rename(moved / "weights")
    assert len(vitlab.search(moved / "x.parquet", photos, 1)) == 60
    other = vitlab.load(moved / "weights")
    with torch.no_grad():
        next(other.parameters()).add_(1)
    vitlab.save(other, tmp_path / "weights")
    assert len(vitlab.search(moved / "x.parquet", photos, 1)) == 60


def test_what_cannot_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.parquet"
    written(file, drawn(9, 4))
    for k in (0, 10):
        with pytest.raises(OptionError, match=r"k must be from 1 to 9, the rows of .*x\.parquet"):
            vitlab.search(file, drawn(4), k)
    with pytest.raises(OptionError, match="table is of type int, but a name is needed"):
        vitlab.search(3, drawn(4))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="cannot read nowhere"):
        vitlab.search("nowhere", drawn(4))
    vitlab.search(file, drawn(4), 1)
    with pytest.raises(OptionError, match=r"the features have 5 numbers, those of .* 4: take"):
        vitlab.search(file, drawn(5), 1)
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts" / "all-00001.parquet", drawn(9, 4), images=30)
    assert "unfinished" not in capsys.readouterr().err
    vitlab.search(tmp_path / "parts", drawn(4), 1)
    assert "parts is unfinished: it has 9 of 30 images" in capsys.readouterr().err
    written(tmp_path / "parts" / "all-00002.parquet", drawn(9, 5), images=30)
    with pytest.raises(DataError, match=r"all-00002\.parquet is of another table than .*00001"):
        vitlab.search(tmp_path / "parts", drawn(4), 1)


def stored(file: Path, array: Any, names: Any = "a", **about: Any) -> None:
    """Write a table of any features, with one text for paths, labels and splits."""
    text = pyarrow.array([names] * len(array), pyarrow.string()) if names == "a" else names
    columns = {"path": text, "label": text, "split": text, "features": array}
    told = json.dumps(ABOUT | {"dimension": 4, "images": len(array)} | about)
    table = pyarrow.table(columns).replace_schema_metadata({"vitlab.embedding": told})
    parquet.write_table(table, file, compression="zstd")


def features(kind: Any) -> Callable[[Path], None]:
    """A table whose features are of another type."""
    fixed = pyarrow.types.is_fixed_size_list(kind)
    return lambda file: stored(file, pyarrow.array([] if fixed else [[1.0]], kind), images=1)


def nulls(file: Path) -> None:
    array = pyarrow.array([[1.0, 2.0], None], pyarrow.list_(pyarrow.float32(), 2))
    stored(file, array, pyarrow.array(["a", None]), dimension=2)


def bomb(file: Path) -> None:
    """A kilobyte that would be 2 MiB."""
    zeros = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(2**19, np.int8)), pyarrow.array([0.0], pyarrow.float32())
    )
    array = pyarrow.FixedSizeListArray.from_arrays(zeros.dictionary_decode(), 2**10)
    stored(file, array, dimension=2**10)


def plain(file: Path) -> None:
    parquet.write_table(pyarrow.table({"a": [1, 2]}), file)


def told(**about: Any) -> Callable[[Path], Any]:
    """A table that says something else of itself."""
    return lambda file: written(file, drawn(3, 4), **about)


def unreadable(file: Path) -> None:
    written(file, drawn(3, 4))
    table = parquet.read_table(file)
    column = table.column("path").cast(pyarrow.binary())
    parquet.write_table(table.set_column(0, "path", column), file)


def truncated(file: Path) -> None:
    written(file, drawn(3, 4))
    file.write_bytes(file.read_bytes()[:-9])


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no table of ours": (plain, "is not a table of vitlab embed: `vitlab embed WEIGHTS DATA --out"),
    "no Parquet": (lambda file: file.write_bytes(b"x" * 99), "cannot read"),
    "cut off": (truncated, "cannot read"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "an empty folder": (Path.mkdir, "has no rows"),
    "huge lists": (features(pyarrow.list_(pyarrow.float32(), 2**31 - 1)), "not as it says"),
    "lists of any length": (features(pyarrow.list_(pyarrow.float32())), "is not a table of vitlab"),
    "other numbers": (features(pyarrow.list_(pyarrow.float64(), 4)), "not as it says"),
    "tokens": (
        features(pyarrow.list_(pyarrow.list_(pyarrow.float32(), 4), 5)),
        "has 5 vectors an image (--what features): search in one of --what features, token, mean",
    ),
    "nulls": (nulls, "has rows without features"),
    "a bomb": (bomb, "has row groups of more than 1 MiB, as embed never does"),
    "another dimension": (told(dimension=5), "not as it says"),
    "what nobody takes": (told(what="all"), "is not a table of vitlab embed"),
    "a layer that is none": (told(layer=3), "is not a table of vitlab embed"),
    "a huge image": (told(image_size=[9, 2**30]), "is not a table of vitlab embed"),
    "a size that is none": (told(image_size="x"), "is not a table of vitlab embed"),
    "paths that are no text": (unreadable, "is not a table of vitlab embed"),
    "another precision": (told(precision=[]), "is not a table of vitlab embed"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_table_of_embed_is_refused_in_a_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LARGEST", 2**20)
    make, says = HOSTILE[kind]
    file = tmp_path / "x.parquet"
    make(file)
    with pytest.raises(DataError) as caught:
        vitlab.search(file, drawn(2 if kind == "nulls" else 4), 1)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=64,depth=1,heads=2,mlp=32)/4", classes=3, image_size=8)
    vitlab.embed(model.eval(), list(np.random.default_rng(0).integers(
        0, 255, (50, 8, 8, 3), np.uint8)), file, workers=0)  # fmt: skip
    content = bytearray(file.read_bytes())
    place = len(content) // 2
    content[place] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"cannot read .*x\.parquet"):
        vitlab.search(file, drawn(64), 1)


def test_weights_of_a_stranger_are_not_looked_for_in_odd_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.parquet"
    written(file, drawn(3, 4))
    with pytest.raises(OptionError, match="does not say where its weights are: --from"):
        FeatureTable.open(file).model()
    for source in ("\0", "https://example.org/x", "x" * 5000):
        table = FeatureTable.open(file)
        object.__setattr__(table, "source", source)
        with pytest.raises(OptionError, match="are gone"):
            table.model()
    model = vitlab.create("ViT(width=4,depth=1,heads=1,mlp=4)/4", classes=3, image_size=8)
    vitlab.save(model, tmp_path / "odd\x1b[2J")
    table = FeatureTable.open(file)
    object.__setattr__(table, "source", str(tmp_path / "odd\x1b[2J"))
    with pytest.raises(WeightsError, match="has other weights"):
        table.model()
    err = capsys.readouterr().err
    assert "odd\\x1b[2J" in err
    assert "\x1b" not in err
