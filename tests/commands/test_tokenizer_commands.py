"""What commands say of an image tokenizer, which has no classes."""

from pathlib import Path

import pytest

import vitlab
from conftest import call


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "m"
    vitlab.save(vitlab.create("dVAE(codes=12,code_width=6,width=8)/4", image_size=8), folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "{}", "digits"),
        ("train", "digits", "--model", "dVAE/8", "--out", "run"),
        ("finetune", "digits", "--from", "{}", "--out", "run"),
    ],
)
def test_commands_that_need_classes_refuse_it_in_one_line(
    words: tuple[str, ...],
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *(word.format(saved) for word in words))
    assert (code, out) == (2, "")
    assert "is a tokenizer, which has no classes: " in err.splitlines()[-1]
    assert "Traceback" not in err


def test_it_is_described(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "load-check", str(saved))
    assert code == 0
    assert "dVAE(codes=12,code_width=6,width=8)/4" in out
    card = (saved / "README.md").read_text() if (saved / "README.md").exists() else ""
    assert "ResNet" not in card
