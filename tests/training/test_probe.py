"""`--probe`: it watches a run, and the run does not notice."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier

import vitlab
from conftest import BRIEF, SHOWN, call, fewer_digits, photo_folder
from distributed.ranks import on_ranks
from steps import asked_to_stop
from training.kept import PLAIN, journal, weights
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.distributed.world import ALONE
from vitlab.effort import Effort
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes import probing as watching
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.probing import KEYS, By, Probe, probe
from vitlab.models.model import Model
from vitlab.recipes.recipe import Host
from vitlab.training.stop import Interrupted


def curve(run: Path, key: str = "probe") -> list[float | None]:
    return [line.get(key) for line in journal(run, "test")]


def train(
    folder: Path,
    data: str = "digits",
    workers: int = 0,
    effort: Effort = BRIEF,
    **how: object,
) -> Path:
    chosen = {k: how.pop(k) for k in ("shard", "probe_by") if k in how}
    host = Host(probe=data, workers=workers, **chosen, effort=effort)
    recipe = vitlab.recipe("digits", **PLAIN | how)
    return vitlab.train(recipe, folder, resume=True, host=host).folder


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("watched") / "run", effort=SHOWN)


def test_the_bits_are_those_of_a_run_without_it_and_the_report_has_its_curve(
    watched: Path, whole: vitlab.Run
) -> None:
    assert weights(watched) == weights(whole)
    lines = [{k: v for k, v in line.items() if k != "probe"} for line in journal(watched)]
    assert lines[:-1] == journal(whole)[:-1]
    page, last = (watched / "report.html").read_text(), f"{curve(watched)[-1]:.1%}"
    assert f'10 images per class</bdi></td><td class="n"><bdi>{last}' in page


def test_the_figure_is_that_of_the_fewshot_command(tmp_path: Path) -> None:
    run = train(tmp_path / "run", lr=0.03)
    probing = Probing(protocol=("fewshot",), shots=(10,), cache="no")
    found = probe(vitlab.load(run), "digits", probing, Compute())
    values = curve(run)
    assert len(values) == 2
    assert values[-1] == pytest.approx(found["fewshot"]["10"]["accuracy"], abs=1.5 / 73)
    assert len(set(values)) == 2, "it follows the weights"


def measured(own: Probe, model: Model) -> tuple[float, list[str]]:
    return own.measure(model, ALONE, device=torch.device("cpu"), workers=0)


def seen(model: Model, source: Images) -> NDArray[np.float64]:
    """Features of images that need no decoding, for an oracle: float64 (n, width)."""
    spec = model.config
    pixels = np.stack([source.image(i).decode(spec.channels) for i in range(len(source))])
    images = torch.from_numpy(pixels)
    with torch.no_grad():
        return model.features(normalize(images, spec)).double().numpy()


def test_nearest_neighbors_vote_as_in_scikit_learn_with_a_model_without_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/4", image_size=8, channels=1, classes=0
    )
    model.eval()
    monkeypatch.setattr(watching, "MOST", 300)
    with fewer_digits(1797):
        own = Probe.of("digits", 1, "knn")
    assert (len(own.learn), len(own.test)) == (300, 300)
    other = {own.learn.name(i) for i in range(300)} & {own.test.name(i) for i in range(300)}
    assert not other, "no test image votes"
    vote = KNeighborsClassifier(
        20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    )
    vote.fit(seen(model, own.learn), own.learn.target.values)
    expected = vote.score(seen(model, own.test), own.test.target.values)
    found, bad = measured(own, model)
    assert (found, bad) == (pytest.approx(expected, abs=1.5 / 300), [])
    assert 0.5 < found < 1


def test_resumed_it_goes_on_and_may_be_left_out_or_added(watched: Path, tmp_path: Path) -> None:
    for steps, data in ((1, "digits"), (4, "")):
        with asked_to_stop(steps), pytest.raises(Interrupted):
            train(tmp_path / "run", data)
    train(tmp_path / "run", workers=1)
    assert weights(tmp_path / "run") == weights(watched)
    first, last = curve(watched)
    assert curve(tmp_path / "run") == [None, last]
    assert first is not None


def test_several_processes_measure_the_same(tmp_path: Path) -> None:
    ways: list[tuple[bool, By]] = [(False, "knn"), (True, "fewshot")]

    def measures(*, shared: bool = True) -> list[float | None]:
        how = {"dropout": 0.0, "drop_path": 0.0, "micro_batch": 0, "steps": 2}
        found: list[float | None] = []
        for shard, by in ways:
            run = train(tmp_path / f"{shared}-{by}", shard=shard and shared, probe_by=by, **how)
            found += curve(run, KEYS[by])
        return found

    said = on_ranks(2, measures, tmp_path / "ranks")
    alone = measures(shared=False)
    assert len(alone) == len(ways)
    assert all(0.1 < value <= 1 for value in alone)
    for each in said:
        assert each.get("value") == pytest.approx(alone, abs=2 / 73), each.get("trace")


def test_other_data_is_prepared_for_the_model_and_damage_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = photo_folder(tmp_path / "photos", {"blue": 30, "red": 13})
    (photos / "blue" / "029.png").write_bytes(b"x")
    for file in sorted((photos / "red").iterdir())[:2]:
        file.write_bytes(b"x")
    run = train(tmp_path / "run", str(photos))
    assert all(0.3 < value <= 1 for value in curve(run))
    err = capsys.readouterr().err
    told = [line for line in err.splitlines() if line.startswith("skipped by the probe")]
    assert len(told) == len(set(told)) >= 2
    assert err.count("10-shot accuracy on") == 2
    assert f"10-shot accuracy on {photos} after step 6: " in err
    assert journal(run)[-1]["damaged"] == 0


def test_a_class_with_too_few_images_is_refused_before_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = photo_folder(tmp_path / "photos", {"blue": 20, "red": 11})
    words = ("train", "digits", "--out", str(tmp_path / "run"), "--probe", str(photos))
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert err.splitlines(keepends=True)[-1] == (
        f"vitlab train: {photos}: class 'red' has 9 training images, and the probe needs 10 of "
        "each class: add images, use --probe-by knn, or other data for --probe\n"
    )
    assert not (tmp_path / "run").exists()
    assert Probe.of(str(photos), 3, "knn").draws == ()  # as the message says
    photo_folder(tmp_path / "more", {"red": 20})
    for file in (tmp_path / "more" / "red").iterdir():
        file.rename(photos / "red" / f"more-{file.name}")
    assert Probe.of(str(photos), 3).title == str(photos)  # as the message says
    with pytest.raises(DataError, match="no such file or folder: nowhere"):
        train(tmp_path / "other", "nowhere")


def test_without_a_readable_image_there_is_no_number(tmp_path: Path) -> None:
    photos = photo_folder(tmp_path / "photos", {"blue": 20, "red": 20})
    for file in photos.rglob("*.png"):
        file.write_bytes(bytes(file))
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", image_size=8)
    own = Probe.of(str(photos), 3)
    for each in (own, Probe.of(str(photos), 3, "knn")):
        accuracy, bad = measured(each, model)
        assert np.isnan(accuracy)
        assert len(bad) == len(each.learn) + len(each.test)
