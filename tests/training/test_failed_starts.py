"""A start that fails leaves nothing behind, and what a killed one left is in nobody's way."""

from pathlib import Path

import pytest

from conftest import QUICK, call
from vitlab.errors import DeviceError, DiskError, OptionError, UserError
from vitlab.training import trial_steps
from vitlab.training.session import Session

LONG = "n" * 300


@pytest.mark.parametrize(
    ("several", "error", "out"),
    [
        ([], OptionError, []),
        (["--folds", "2"], DeviceError, ["--out", "a/b/run"]),
        (["--seeds", "2"], DiskError, ["--out", "run"]),
        (["--sweep", "1e-3"], None, []),
        ([], None, ["--out", "a/b/run"]),
    ],
)
def test_no_folder_is_left(
    several: list[str], error: type[UserError] | None, out: list[str],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of what fails in its first steps, or does not fit the data."""

    def refuse(session: Session) -> None:
        assert error is not None
        raise error("no")

    monkeypatch.setattr(trial_steps, "try_steps", refuse)
    wrong = [] if error else ["--classes", "3"]
    code, _, err = call(capsys, "train", "digits", *QUICK, *several, *out, *wrong)
    said = "vitlab train: no" if error else "classes=3, but digits has 10 classes"
    assert (code, said in err.splitlines()[-1]) == (2, True)
    assert list(Path.cwd().iterdir()) == []


def test_the_users_own_folders_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    words = ["train", "digits", *QUICK, "--classes", "3", "--out", "mine/a/run", "--seeds", "2"]
    assert call(capsys, *words)[0] == 2
    assert [str(each) for each in Path().rglob("*")] == ["mine"]


@pytest.mark.parametrize(
    ("several", "out", "resume"),
    [
        ([], [], ["--resume"]),
        (["--seeds", "2"], [], ["--resume"]),
        (["--sweep", "1e-3"], ["--out", "x"], []),
    ],
)
def test_drafts_of_a_killed_start_are_in_nobodys_way(
    several: list[str], resume: list[str], out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "digits-ViT-4" + ("-2-seeds" if "--seeds" in several else "")
    place = Path(out[-1]) if out else Path("runs", name)
    for folder in (place, place / "sweep") if "--sweep" in several and out else (place,):
        (folder / ".guide.draft-abcdefg1").mkdir(parents=True)
        for file in (".lock", ".run.toml.draft-0bcd_fgh", ".campaign.json.draft-abcdefgh"):
            (folder / file).touch()
    words = ["train", "digits", *QUICK[:2], "--steps", "1", "--workers", "0", *several]
    code, _, err = call(capsys, *words, *out, *resume)
    assert code == 0, err
    assert [each.name for each in place.parent.iterdir()] == [place.name]
    assert list(place.rglob("model.safetensors"))


@pytest.mark.parametrize(
    "words",
    [
        ["--out", LONG], ["--out", LONG, "--resume"], ["--out", f"a/b/{LONG}", "--seeds", "2"],
        ["--out", LONG, "--sweep", "1e-3"], ["--probe", LONG], ["--recipe", LONG],
        ["--seeds", "99999999999"], ["--folds", "99999999999"],
    ],
)  # fmt: skip
def test_what_is_too_long_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "train", "digits", *QUICK, *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 2, "what was begun, and one line"
    assert "too long" in err or "at most 9999, not 99999999999" in err
    assert list(Path.cwd().iterdir()) == []
