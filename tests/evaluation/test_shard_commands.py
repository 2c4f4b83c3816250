"""`vitlab predict` and `embed` with a folder as --out, and with shards and tables as DATA."""

import io
import json
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

import vitlab
from conftest import call, photo, photo_folder
from distributed.ranks import on_ranks
from evaluation.shard_jobs import shards, small_batches, tiny
from vitlab.evaluation import infer

few_at_a_time = pytest.fixture(scope="module", autouse=True)(small_batches)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    return str(vitlab.save(tiny(), tmp_path / "weights"))


def table(file: Path, images: int) -> Path:
    """A Parquet file of images without labels."""
    cells = []
    for number in range(images):
        stream = io.BytesIO()
        photo(number, 12, 10).save(stream, "PNG")
        cells.append({"bytes": stream.getvalue(), "path": None})
    parquet.write_table(pyarrow.table({"image": cells}), file)
    return file


def test_predict_fills_a_folder_and_says_what_it_holds(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards(tmp_path / "tars", 2, 10)
    names = [str(tmp_path / "tars" / f"s-00{number}.tar") for number in range(2)]
    base = ["predict", weights, *names, "--part-images", "8", "--workers", "0"]
    base += ["--out", str(tmp_path / "rows")]
    code, out, err = call(capsys, *base, "--json")
    found = json.loads(out)
    assert code == 0
    assert "skipped: " in err
    keys = ("images", "damaged", "parts", "own_parts", "own_images")
    assert [found[key] for key in keys] == [19, 1, 3, 3, 20]
    assert found["seconds"] > 0
    code, out, err = call(capsys, *base)  # nothing is left to do
    assert (code, err) == (0, "")
    assert "19" in out
    rows = pd.read_parquet(tmp_path / "rows")
    assert [name.split()[-1] for name in rows["image"]] == [f"{n:05d}" for n in range(20)]
    for more, words in (
        (("--top", "2"), "top=5 there, 2 here"),
        (("--format", "csv"), "format=parquet there, csv here"),
        (("--replace",), "replace=True applies only with a file as out"),
    ):
        code, out, err = call(capsys, *base, *more)
        assert (code, out) == (2, "")
        assert words in err
    code, _, err = call(capsys, *base[:-2], "--format", "csv")
    assert (code, err) == (2, "vitlab predict: part_images=8 applies only with a folder as out\n")


def test_one_replaced_image_is_noticed(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [photo_folder(tmp_path / f"photos{n}", {"a": 12, "b": 12}) for n in range(2)]
    base = ["predict", weights, *map(str, folders), "--part-images", "8", "--workers", "0"]
    base += ["--out", str(tmp_path / "rows")]
    assert call(capsys, *base)[0] == 0
    for file in folders[0].rglob("*.png"):
        file.touch()  # its bytes are what counts
    assert call(capsys, *base)[0] == 0
    old = sorted(folders[0].rglob("*.png"))[5]  # not one of the eight that are read in any case
    photo(99, 12, 10).save(old)
    code, _, err = call(capsys, *base)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "rows has the parts of another job (other data): choose another --out" in err


def test_shards_of_a_folder(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"embed {weights} {shards(tmp_path / 'tars', 1, 16)} --part-images 8 --workers 0"
    base = [*line.split(), "--out", str(tmp_path / "x")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infer, "take", Mock(side_effect=KeyboardInterrupt))
        assert call(capsys, *base)[0] == 130
    for shard, left in (("1/2", 1), ("0/2", 0)):
        code, out, _ = call(capsys, *base, "--shard", shard, "--json")
        found = json.loads(out)
        assert (code, found["own_parts"], found["left"]) == (0, 1, left)
    code, out, err = call(capsys, *base, "--shard", "2/2")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    file = ("--out", str(tmp_path / "x.parquet"), "--shard", "1/2")
    code, _, err = call(capsys, *base[:3], *file)
    assert code == 2
    assert "shard='1/2' applies only with a folder as out" in err


def test_predict_takes_any_data(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glob = shards(tmp_path / "tars", 2, 4)
    one, two = table(tmp_path / "a-train.parquet", 3), table(tmp_path / "a-test.parquet", 2)
    (tmp_path / "tables").mkdir()
    table(tmp_path / "tables" / "x.parquet", 4)
    photos = photo_folder(tmp_path / "photos", {"a": 2}, 12, 10)
    (photos / "a" / "more.tar").write_bytes(Path(glob.replace("*", "000")).read_bytes())
    for words, images in (
        ((glob,), 8),
        ((str(tmp_path / "tars"),), 8),
        ((str(tmp_path / "tars" / "s-{000..001}.tar"),), 8),
        ((str(one), str(two)), 5),
        ((str(tmp_path / "a-*.parquet"),), 5),
        ((str(tmp_path / "tables"),), 4),
        ((str(photos / "a"),), 2),
        ((str(one), str(photos)), 5),
    ):
        code, out, err = call(capsys, "predict", weights, *words, "--json")
        assert (code, len(json.loads(out)["predictions"])) == (0, images), err
    code, out, _ = call(capsys, "embed", weights, str(one), "--out", str(tmp_path / "f.parquet"))
    assert code == 0
    assert set(pd.read_parquet(tmp_path / "f.parquet")["split"]) == {"all"}


def test_several_processes_need_a_folder(weights: str, tmp_path: Path) -> None:
    photo(0).save(tmp_path / "x.png")

    def work() -> None:
        from vitlab.cli import main

        main(["predict", weights, str(tmp_path / "x.png")])

    said = on_ranks(2, work, tmp_path / "ranks")
    assert [each["kind"] for each in said] == ["SystemExit", "SystemExit"]
    assert [each["error"] for each in said] == ["2", "2"]
