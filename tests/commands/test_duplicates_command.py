"""`vitlab duplicates`: its table, its JSON, its page, and wrong input."""

import json
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from conftest import call, photo_folder
from vitlab.commands.duplicates import show


@pytest.fixture
def data() -> tuple[str, str]:
    """Pictures; three of them again, as the same bytes, mirrored, and smaller; and a new one."""
    train = photo_folder(Path("train"), {"a": 4, "b": 4}, 48, 64)
    test = Path("te<st>")
    test.mkdir()
    (test / "same.png").write_bytes((train / "a" / "000.png").read_bytes())
    ImageOps.mirror(Image.open(train / "a" / "001.png")).save(test / "mirrored.png")
    Image.open(train / "b" / "002.png").resize((40, 30)).save(test / "smaller & odd.jpg")
    photo_folder(Path("other"), {"x": 0, "y": 0, "z": 12}, 48, 64)
    Image.open(Path("other") / "z" / "011.png").save(test / "new.png")
    return str(train), str(test)


def test_the_pairs_as_a_table_and_as_json(
    data: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "duplicates", *data, "--workers", "0")
    assert code == 0
    assert "same bytes" in out
    assert "mirrored.png" in out
    code, out, _ = call(capsys, "duplicates", *data, "--workers", "0", "--json")
    found = json.loads(out)
    names = {(Path(p["train_name"]).name, Path(p["test_name"]).name) for p in found["pairs"]}
    assert names == {
        ("000.png", "same.png"),
        ("001.png", "mirrored.png"),
        ("002.png", "smaller & odd.jpg"),
    }
    assert [p["exact"] for p in found["pairs"]].count(True) == 1
    show(found | {"pairs": found["pairs"] * 8})
    assert "4 more pairs: --json lists them all" in capsys.readouterr().out
    assert (found["images"], found["test_images"], found["damaged"]) == (12, 3, 0)


def test_the_page_is_one_file_with_its_words_escaped(
    data: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "duplicates", *data, "--workers", "0", "--out", "pairs.html")
    assert (code, out.splitlines()[-1]) == (0, "pairs.html")
    page = Path("pairs.html").read_text()
    assert page.count('src="data:image/') == 6
    assert "te<st>" not in page
    assert "smaller &amp; odd.jpg" in page
    assert 'src="http' not in page
    words = ("duplicates", *data, "--workers", "0", "--out", "pairs.html")
    code, _, err = call(capsys, *words)
    assert (code, "already exists: pass --replace" in err) == (2, True)
    assert call(capsys, *words, "--replace")[0] == 0
