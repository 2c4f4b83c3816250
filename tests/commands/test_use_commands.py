"""`vitlab evaluate` and `vitlab predict`."""

import json
from io import StringIO
from pathlib import Path

import pytest

import vitlab
from conftest import call, photo_folder


def test_predict_files_folders_and_globs(
    capsys: pytest.CaptureFixture[str], digits_run: Path, tmp_path: Path
) -> None:
    folder = photo_folder(tmp_path / "some", {"a": 2, "b": 1}, 8, 8)
    (folder / "b" / "bad.png").write_bytes(b"x")
    pattern = str(folder / "a" / "*.png")
    code, out, err = call(
        capsys, "predict", str(digits_run), str(folder), pattern, "--json", "--top", "3"
    )
    answers = json.loads(out)["predictions"]
    assert code == 0
    names = [Path(each["image"]).name for each in answers]
    assert names == ["000.png", "001.png", "000.png", "bad.png", "000.png", "001.png"]
    good = [each for each in answers if "top" in each]
    assert len(good) == 5
    for each in good:
        chances = [item["probability"] for item in each["top"]]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert set(each["top"][0]) == {"class", "probability"}
    assert answers[0] == answers[4]
    assert "bad.png" in err
    assert "1 of 6 images cannot be read" in err
    assert (json.loads(out)["images"], json.loads(out)["damaged"]) == (5, 1)
    assert call(capsys, "predict", str(digits_run), str(folder / "b" / "bad.png"))[0] == 2
    code, out, _ = call(capsys, "predict", str(digits_run), str(folder / "a" / "000.png"))
    assert code == 0
    assert "000.png" in out
    assert "%" in out


def test_evaluate_shows_intervals_classes_and_pairs(
    capsys: pytest.CaptureFixture[str], digits_run: Path
) -> None:
    code, out, _ = call(capsys, "evaluate", str(digits_run), "digits", "--json")
    result = json.loads(out)
    assert code == 0
    last = json.loads((digits_run / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("accuracy", "top5", "ece", "images", "params", "macs"):
        assert result[key] == last[key]
    low, high = result["intervals"]["accuracy"]
    assert low < result["accuracy"] < high
    assert [each["class"] for each in result["classes"]] == list("0123456789")
    assert sum(each["images"] for each in result["classes"]) == 359
    wrong = round((1 - result["accuracy"]) * 359)
    assert result["confused"][0]["images"] <= wrong
    code, out, _ = call(capsys, "evaluate", str(digits_run), "digits")
    assert f"{result['accuracy']:.1%} ({100 * low:.1f} to {100 * high:.1f})" in out
    assert "precision" in out
    assert "predicted as" in out
    assert "top-5 accuracy" in out
    assert "1,438" in call(capsys, "evaluate", str(digits_run), "digits", "--split", "train")[1]
    code, out, _ = call(capsys, "train", "digits", "--out", str(digits_run), "--resume", "--json")
    assert json.loads(out)["intervals"] == result["intervals"]


def test_of_many_classes_the_worst_are_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [f"[b]{number:02d}" for number in range(12)]  # not markup
    photo_folder(tmp_path / "photos", dict.fromkeys(names, 3), 8, 8)
    made = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=12, image_size=8, labels=tuple(names),
        zero_head=True,
    )  # fmt: skip
    vitlab.save(made, tmp_path / "model")
    code, out, err = call(capsys, "evaluate", str(tmp_path / "model"), str(tmp_path / "photos"))
    assert not err
    assert code == 0
    assert "the 10 classes with the lowest F1, of 12" in out
    assert "[b]02" in out  # all images are taken for the first class


def names(out: str) -> list[str]:
    return [Path(each["image"]).name for each in json.loads(out)["predictions"]]


def test_predict_lists_and_standard_input(
    capsys: pytest.CaptureFixture[str],
    digits_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = photo_folder(tmp_path / "some", {"a": 3}, 8, 8)
    (folder / "a" / "c.heic").write_bytes(b"x")
    lists = tmp_path / "some" / "test.csv"
    lists.write_text("id,scan\n000,1\n002,2\n")  # in a folder beside it, without endings
    predict = ("predict", str(digits_run), "--json", "--workers", "0")
    code, out, _ = call(capsys, *predict, str(lists))
    assert (code, names(out)) == (0, ["000.png", "002.png"])
    lists.write_text("where,id\na/001.png,7\n")
    assert names(call(capsys, *predict, str(lists), "--path-column", "where")[1]) == ["001.png"]
    lists.write_text("path\n../../outside.png\n")
    photo_folder(tmp_path / "x", {"y": 1}, 8, 8)
    (tmp_path / "x" / "y" / "000.png").rename(tmp_path.parent / "outside.png")
    code, _, err = call(capsys, *predict, str(lists))
    assert (code, "--allow-outside" in err) == (2, True)
    assert names(call(capsys, *predict, str(lists), "--allow-outside")[1]) == ["outside.png"]
    odd = folder / "a" / "new\nline.png"
    (folder / "a" / "002.png").rename(odd)
    monkeypatch.setattr("sys.stdin", StringIO(f"{folder}/a/000.png\n\n{folder}/a/001.png\n"))
    assert names(call(capsys, *predict, "-")[1]) == ["000.png", "001.png"]
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert "the list is empty" in call(capsys, *predict, "-")[2]
    _, out, _ = call(capsys, "predict", str(digits_run), str(odd))
    assert out.count("\n") == 1
    assert "new\\nline.png" in out


def test_columns_of_lists_are_options_of_every_command(
    capsys: pytest.CaptureFixture[str], digits_run: Path, tmp_path: Path
) -> None:
    """The last two columns of the list could both be labels."""
    digits = ("0", "1")
    photo_folder(tmp_path / "pictures", dict.fromkeys(digits, 8), 8, 8)
    rows = [f"{c}/00{i}.png,{i},{c}" for c in digits for i in range(8)]
    (tmp_path / "list.csv").write_text("\n".join(["where,day,kind", *rows]) + "\n")
    data = str(tmp_path / "list.csv")
    chosen = ("--path-column", "where", "--label-column", "kind", "--images")
    columns = (*chosen, str(tmp_path / "pictures"), "--json", "--workers", "0")
    run, out = str(digits_run), str(tmp_path / "out")
    commands: dict[tuple[str, ...], tuple[str, ...]] = {
        ("evaluate", run, data): ("--split", "all"),
        ("embed", run, data, "--out", f"{out}.parquet"): (),
        ("fewshot", run, data, "--cache", "no", "--protocol", "means"): (),
        ("prepare", data, out): (),
        ("duplicates", data): (),
    }  # fmt: skip
    for words, more in commands.items():
        code, _, err = call(capsys, *words, *more, "--json")
        if words[0] in ("embed", "duplicates"):  # which need no labels
            assert code == 0, words
            (tmp_path / "out.parquet").unlink(missing_ok=True)
        else:
            assert (code, "--label-column" in err) == (2, True), words
        code, result, err = call(capsys, *words, *more, *columns)
        assert code == 0, err
        assert json.loads(result)["images"] > 0, words
    figures = vitlab.evaluate(
        vitlab.load(run),
        data,
        columns=vitlab.Columns(label_column="kind", images=str(tmp_path / "pictures")),
        split="all",
        device="cpu",
    )
    assert figures["images"] == 16
