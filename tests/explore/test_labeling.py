"""Labels that a person gives: the head that follows, what is proposed next, and the list saved."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier

import vitlab
from conftest import call, photo_folder
from explore.made import Exploring
from serve.made import until
from vitlab.data.open import open_images
from vitlab.errors import DataError, OptionError
from vitlab.explore.dataset_map import MapJob, dataset_map
from vitlab.explore.labeling import NEXT, Labeling

Features = NDArray[np.float32]


def groups(count: int = 40, apart: float = 6.0) -> Features:
    """Features of images of two kinds, half of each, that can be told apart."""
    found = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    found[count // 2 :, 0] += apart
    return found


def blank(features: Features) -> Labeling:
    names = [f"/photos/{number:03}.png" for number in range(len(features))]
    return Labeling(features, names, np.full(len(features), -1), ())


def test_the_head_is_a_ridge_regression_and_guesses_what_has_no_label() -> None:
    features = groups()
    labeling = blank(features)
    assert labeling.state()["guess"] == []
    labeling.give(range(8), "cat")
    assert labeling.state()["accuracy"] is None  # one class tells nothing
    state = labeling.give([*range(20, 27)], "dog")
    assert state["classes"] == ["cat", "dog"]
    assert state["labels"] == [0] * 8 + [-1] * 12 + [1] * 7 + [-1] * 13
    assert state["guess"] == [0] * 20 + [1] * 20
    assert state["accuracy"] == 1
    assert len(state["margin"]) == 40
    known = np.flatnonzero(np.array(state["labels"]) >= 0)
    z = (features - features.mean(0)) / features.std(0)
    theirs = [
        RidgeClassifier(alpha).fit(z[known], np.array(state["labels"])[known]).decision_function(z)
        for alpha in 2.0 ** np.arange(20, -5, -2)
    ]
    margins = [np.abs(2 * each) for each in theirs]  # of two outputs that are each other's negative
    assert min(np.abs(each - state["margin"]).max() for each in margins) < 1e-3


def test_a_label_can_be_changed_and_taken_away() -> None:
    labeling = blank(groups())
    labeling.give([0, 1], "cat")
    labeling.give([1], " dog ")
    state = labeling.give([0], "")
    assert (state["labels"][:3], state["classes"]) == ([-1, 1, -1], ["cat", "dog"])


def test_proposed_are_doubtful_images_that_differ_from_each_other() -> None:
    """Of twenty copies of one image in doubt one is proposed, before any that is sure."""
    sure, doubtful = groups(40, 12.0), np.zeros((20, 4), np.float32)
    doubtful[:, 0] = 6.0  # between the two kinds
    labeling = blank(np.concatenate([sure, doubtful]))
    labeling.give(range(10), "left")
    state = labeling.give(range(20, 30), "right")
    proposed = state["next"]
    margins = np.array(state["margin"])
    assert len(proposed) == len(set(proposed)) == NEXT
    assert all(state["labels"][place] < 0 for place in proposed)
    assert margins[proposed[0]] == margins[40:].min() < margins[:40].min()
    assert sum(place >= 40 for place in proposed) == 1


def test_before_the_second_class_what_is_unlike_the_labels_is_proposed() -> None:
    labeling = blank(groups(40, 30.0))
    proposed = labeling.give([0, 1, 2], "cat")["next"]
    assert proposed[0] >= 20
    assert blank(groups())._features.shape == (40, 4)
    assert len(blank(groups(3)).state()["next"]) == 3
    everything = blank(groups(4))
    assert everything.give(range(4), "cat")["next"] == []


def test_what_cannot_be_is_refused() -> None:
    labeling = blank(groups())
    for place in (-1, 40):
        with pytest.raises(OptionError, match="images are counted from 0 to 39"):
            labeling.give([place], "cat")
    labeling.give([0], "7")
    with pytest.raises(
        DataError, match=r"000.png is not a file of its own: only labels of folders"
    ):
        labeling.as_csv()


@pytest.fixture(scope="module")
def model() -> Any:
    tiny = "ViT(width=16,depth=1,heads=2,mlp=32)/8"
    return vitlab.create(tiny, classes=0, image_size=32)


def test_saved_labels_are_data_of_every_command(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class folders that are joined give images without labels; a name with a comma stays whole."""
    folder = photo_folder(tmp_path / "p", {"a": 8, "b": 8})
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(folder.rglob("*.*"))):
        file.rename(flat / f"{number:02}{file.suffix}")
    labeling = dataset_map(model, str(flat)).labeling
    state = labeling.state()
    assert (state["folder"], state["labels"]) == (str(flat), [-1] * 16)
    labeling.give(range(6), "red, or nearly")
    labeling.give(range(8, 14), "blau")
    saved = flat / "labels.csv"
    saved.write_text(labeling.as_csv())
    with saved.open(newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows[:2] == [["path", "label"], ["00" + Path(rows[1][0]).suffix, "red, or nearly"]]
    assert len(rows) == 13
    assert {*open_images(str(saved)).every().classes} == {"red, or nearly", "blau"}
    vitlab.save(model, tmp_path / "model")
    out = str(tmp_path / "probe")
    status, _, err = call(
        capsys, "probe", str(saved), "--from", str(tmp_path / "model"), "--out", out
    )
    assert status == 0, err
    again = dataset_map(model, str(saved)).labeling.state()
    assert set(again["classes"]) == {"red, or nearly", "blau"}
    (tmp_path / "downloads").mkdir()
    away = saved.rename(tmp_path / "downloads" / "labels.csv")
    status, _, err = call(capsys, "evaluate", out, str(away))
    assert (status, "--images names another folder" in err) == (2, True)
    status, out, err = call(capsys, "evaluate", out, str(away), "--images", str(flat), "--json")
    assert status == 0, err
    assert json.loads(out)["images"] == 2  # the fifth of 12 that is held out


def test_labels_over_http(model: Any, tmp_path: Path) -> None:
    """Given, asked for and saved; what is no such body, or comes from another site, is refused."""
    folder = photo_folder(tmp_path / "p", {"a": 5, "b": 5})
    map_job = MapJob(lambda progress: dataset_map(model, str(folder)))
    exploring = Exploring(("one", model), map_job=map_job)
    try:
        exploring(until(lambda: map_job.state()[0] is not None))
        state = exploring.ask("/api/labels").json
        assert state["labels"] == [0] * 5 + [1] * 5
        state = exploring.ask("/api/labels", {"images": [0, 1], "class": "new\n"}).json
        assert (state["classes"], state["labels"][:3]) == (["a", "b", "new"], [2, 2, 0])
        saved = exploring.ask("/api/labels.csv")
        assert saved.headers["content-type"].startswith("text/csv")
        assert saved.body.decode().splitlines()[0] == "path,label"
        assert len(saved.body.decode().splitlines()) == 11
        for body in (b"", b"[]", {"images": [0]}, {"images": ["0"], "class": "a"}, {"class": 1}):
            assert exploring.ask("/api/labels", body).status == 400
        beyond = exploring.ask("/api/labels", {"images": [10], "class": "a"})
        assert (beyond.status, beyond.error) == (400, "images are counted from 0 to 9")
        for path in ("/api/labels", "/api/labels.csv"):
            reply = exploring.ask(path, origin="http://elsewhere.example")
            assert reply.status == 403
        body: dict[str, Any] = {"images": [2], "class": "b"}
        assert exploring.ask("/api/labels", body, sec_fetch_site="cross-site").status == 403
        assert exploring.ask("/api/labels", host="elsewhere.example").status == 403
        assert exploring.ask("/api/labels").json["labels"][2] == 0
    finally:
        exploring.close()
