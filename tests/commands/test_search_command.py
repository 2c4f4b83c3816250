"""`vitlab search`: its table, its JSON, its page, and wrong input."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitlab
from conftest import call, photo, photo_folder
from report.reading import fits, needs_chromium


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of sixty photographs, one of them with an odd name; weights are beside it."""
    place = tmp_path_factory.mktemp("place")
    photos = photo_folder(place / "photos", {"blue": 20, "green": 20, "red": 20})
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=3, image_size=8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3)
    (photos / "red" / "003.png").rename(photos / "red" / "<b>\n\x1b[2J.png")
    photo(3, 24, 32, 2).save(place / "asked.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        vitlab.save(model, "weights")
        model = vitlab.load("weights")
        vitlab.embed(model, photos, "x.parquet", workers=0)
    return place


@pytest.fixture
def table(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The table's name, in its folder; pages that a test leaves there go."""
    monkeypatch.chdir(place)
    yield "x.parquet"
    for page in place.glob("*.html"):
        page.unlink()


def test_the_table_and_json(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "search", table, "asked.png", "photos/blue/001.png", "--k", "2")
    assert (code, "weights: weights, as x.parquet says" in err) == (0, True), err
    assert "<b>\\n\\x1b[2J.png" in out
    lines = out.splitlines()
    assert lines[0] == "asked.png"
    assert lines[4].split()[1:] == [
        str(Path("photos/blue/001.png").resolve()),
        "blue",
        "train",
        "itself",
    ]
    words = ("search", table, "asked.png", "photos/blue/001.png", "--k", "2", "--not-self")
    code, out, _ = call(capsys, *words, "--from", "weights", "--json")
    found = json.loads(out)
    assert (code, found["rows"], found["images"], found["damaged"]) == (0, 60, 2, 0)
    first, second = found["found"]
    assert first["image"] == "asked.png"
    assert first["nearest"][0]["path"].endswith("red/<b>\n\x1b[2J.png")
    assert first["nearest"][0]["label"] == "red"
    assert first["nearest"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert len(second["nearest"]) == 2
    assert "blue/001.png" not in {Path(each["path"]).name for each in second["nearest"]}


def test_the_page_is_one_file_with_its_words_escaped(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("search", table, "asked.png", "--k", "5", "--out", "page.html")
    code, out, _ = call(capsys, *words)
    assert (code, out.splitlines()[-1]) == (0, "page.html")
    page = Path("page.html").read_text()
    assert page.count('src="data:image/') == 6
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert 'src="http' not in page
    code, _, err = call(capsys, *words)
    assert (code, "already exists: pass --replace" in err) == (2, True)
    Path("page.html").rename("home.html")  # from where ~ leads
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(Path.cwd()))
        assert "already exists" in call(capsys, *words[:-1], "~/home.html")[2]
        assert call(capsys, *words[:-1], "~/page.html")[0] == 0
    data = ("--data", "photos/blue", "--replace")
    assert call(capsys, *words, *data)[0] == 0
    assert 0 < Path("page.html").read_text().count("no picture") <= 5, "only of the named data"


@needs_chromium
def test_the_page_fits_a_phone(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = Path("a_folder_with_quite_a_long_name_that_has_no_space", "asked.png")
    long.parent.mkdir()
    long.write_bytes(Path("asked.png").read_bytes())
    code, _, err = call(capsys, "search", table, str(long), "--k", "3", "--out", "report.html")
    assert code == 0, err
    assert fits(Path.cwd())


def test_digits_have_pictures_too(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, page = str(tmp_path / "digits.parquet"), str(tmp_path / "page.html")
    vitlab.embed(vitlab.load(digits_run), "digits", table, workers=0)
    words = ("search", table, "digits", "--k", "3", "--not-self")
    code, out, err = call(capsys, *words, "--out", page, "--data", "digits")
    assert code == 0, err
    assert "7,088 more lines: --json has them all" in out
    text = Path(page).read_text()
    assert text.count('src="data:image/') == 600
    assert "1,647 more photographs are not shown" in text


def test_a_damaged_photograph_is_named_and_others_are_answered(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.png").write_bytes(b"x")
    words = ("search", table, "bad.png", "asked.png", "--k", "1", "--out", "page.html")
    code, out, err = call(capsys, *words, "--json")
    found = json.loads(out)
    assert (code, found["images"], found["damaged"]) == (0, 1, 1)
    assert "bad.png" in err
    assert [*found["found"][0]] == ["image", "error"]
    assert "bad.png: " in Path("page.html").read_text()


def test_the_image_size_is_the_tables(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "search", table, "asked.png", "--image-size", "12")[0] == 0
