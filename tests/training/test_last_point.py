"""The end of a run does not predict again what the last point of its learning curve predicted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import vitlab
from conftest import TINY, photo, photo_folder
from vitlab.training import ending, observer
from vitlab.training.session import Session
from vitlab.training.stop import Interrupted

QUICK = TINY | {"epochs": 2, "batch": 32, "test_every": 1, "image_size": 8}
SPEEDS = ("images_per_second", "peak_memory", "seconds", "run", "report")

Counted = Callable[..., tuple[vitlab.Run, int]]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Train, and count how often a whole source is predicted."""
    real, calls = observer.predict, list[int]()

    def count(model: Any, source: Any, compute: Any, **options: Any) -> Any:
        calls.append(len(source))
        return real(model, source, compute, **options)

    monkeypatch.setattr(observer, "predict", count)

    def train(name: str, data: str, **fields: Any) -> tuple[vitlab.Run, int]:
        calls.clear()
        recipe = vitlab.recipe("small", data=data, **QUICK | fields)
        return vitlab.train(recipe, tmp_path / name, resume=True), len(calls)

    return train


def figures(run: vitlab.Run) -> str:
    """What was found, as text, in which NaN equals NaN."""
    return json.dumps({key: value for key, value in run.metrics.items() if key not in SPEEDS})


def points(run: vitlab.Run) -> int:
    """How many points the learning curve has."""
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line)["kind"] in ("test", "validation") for line in lines)


def test_what_was_just_predicted_is_not_predicted_again_and_a_resumed_run_finds_the_same(
    counted: Counted, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = counted("whole", str(photos))
    assert calls == points(run) >= 2
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="after the last step"):
        patch.setattr(ending, "save", lambda *_: signal.raise_signal(signal.SIGINT))
        counted("cut", str(photos))
    again, calls = counted("cut", str(photos))
    assert calls == 1  # nothing is known of the last measurement
    assert figures(again) == figures(run)
    ours, theirs = (load_file(each.folder / "predictions.safetensors") for each in (run, again))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_other_images_or_other_weights_are_predicted(
    counted: Counted, photos: Path, tmp_path: Path
) -> None:
    assert counted("digits", "digits", epochs=0.1)[1] == 1
    run, calls = counted("patient", str(photos), patience=2)
    assert calls == points(run) + 1  # those on the validation images, then the test images
    for side, more in ((24, 0), (40, 1)):  # from four times the model's 8 pixels on,
        lossy = photo_folder(tmp_path / f"jpeg{side}", {"a": 0, "b": 0})
        for number in range(20):  # a test decodes a JPEG at half its size; what is cached is whole
            for tint, name in enumerate("ab"):
                photo(number, side, side, tint).save(lossy / name / f"{number}.jpg")
        run, calls = counted(f"lossy{side}", str(lossy))
        assert calls == points(run) + more
        nll = vitlab.evaluate(run.model, str(lossy))["nll"]
        assert nll == pytest.approx(run.metrics["nll"], abs=1e-9)


def test_predictions_of_earlier_steps_are_not_taken_for_those_of_the_last(
    counted: Counted, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Session.evaluate
    monkeypatch.setattr(Session, "evaluate", lambda self: real(self) if self.state.step < 3 else [])
    run, calls = counted("unmeasured", str(photos))
    assert calls == 2
    assert vitlab.evaluate(run.model, str(photos))["nll"] == pytest.approx(run.metrics["nll"])
