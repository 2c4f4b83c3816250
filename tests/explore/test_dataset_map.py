"""The explorer's map: what the page is told, of data of every kind."""

import asyncio
import json
import shutil
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import photo_folder
from explore.made import Exploring
from serve.calling import Reply, send
from serve.made import encoded, until
from steady import PATIENCE
from vitlab.errors import DataError, ImageError
from vitlab.explore.dataset_map import DatasetMap, MapJob, Progress, dataset_map, sheet_of
from vitlab.explore.explore_routes import application
from vitlab.models.model import Model

KEYS = {
    "points", "truth", "guess", "confidence", "names", "classes", "suspects", "sheet", "images",
    "of", "note",
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Model:
    tiny = "ViT(width=16,depth=1,heads=2,mlp=32)/8"
    return vitlab.create(tiny, classes=3, image_size=32, labels=("blue", "green", "red"))


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_folder(tmp_path_factory.mktemp("map") / "p", {"blue": 20, "green": 9, "red": 9})


@pytest.fixture(scope="module")
def made(model: Model, colors: Path) -> tuple[DatasetMap, list[tuple[float, str]]]:
    told: list[tuple[float, str]] = []
    found = dataset_map(model, str(colors), progress=lambda share, what: told.append((share, what)))
    return found, told


def test_what_the_page_is_told(made: tuple[DatasetMap, list[tuple[float, str]]]) -> None:
    found, told = made
    page = json.loads(json.dumps(found.about))
    assert set(page) == KEYS
    assert page["images"] == page["of"] == 38
    for key in ("points", "truth", "guess", "confidence", "names"):
        assert len(page[key]) == 38
    assert page["classes"] == ["blue", "green", "red"]
    assert [Path(name).parent.name for name in page["names"]] == [
        page["classes"][truth] for truth in page["truth"]
    ]
    assert all(0 <= value <= 1 for point in page["points"] for value in point)
    assert all(1 / 3 <= value <= 1 for value in page["confidence"])
    assert page["note"] == ""
    for each in page["suspects"]:
        assert page["truth"][each["index"]] == each["truth"] != each["better"]
        assert 0 <= each["score"] <= 0.5
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] < 1
    assert told[0][1] == "looking at 38 images"


def test_the_sheet_has_the_thumbnails_in_order(
    made: tuple[DatasetMap, list[tuple[float, str]]],
) -> None:
    found, _ = made
    sheet = Image.open(BytesIO(found.sheet))
    side, across = found.about["sheet"]["side"], found.about["sheet"]["columns"]
    assert sheet.size == (across * side, -(-38 // across) * side)
    for place, truth in ((0, 0), (37, 2)):
        row, column = divmod(place, across)
        at = (column * side + side // 2, row * side + side // 2)
        assert int(np.argmax(sheet.getpixel(at))) == truth  # photos are tinted by class
    squares = np.arange(5 * 4 * 4 * 3).reshape(5, 4, 4, 3).astype(np.uint8)
    table, columns = sheet_of(squares)
    assert (table.shape, columns) == ((8, 12, 3), 3)
    assert (table[4:, 4:8] == squares[4]).all()
    assert (table[4:, 8:] == 0).all()


def test_an_image_of_the_map_can_be_opened(
    made: tuple[DatasetMap, list[tuple[float, str]]], model: Model
) -> None:
    found, _ = made
    name, content = found.content(5)
    assert name == found.about["names"][5]
    assert content == Path(name).read_bytes()
    digits = dataset_map(
        vitlab.create(
            "ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=10, channels=1, image_size=8
        ),
        "digits",
        most=12,
    )
    _, content = digits.content(3)
    assert Image.open(BytesIO(content)).size == (8, 8)
    assert digits.about["note"] == "12 of 359 images, chosen at random (seed 0)."
    file = Path(found.images.name(7))
    gone = file.rename(file.with_suffix(".gone"))
    with pytest.raises(ImageError):
        found.content(7)
    gone.rename(file)


def test_data_of_other_classes_and_without_labels(model: Model, colors: Path) -> None:
    other = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", classes=2, image_size=32)
    found = dataset_map(other, str(colors), most=10).about
    assert (set(found["guess"]), found["suspects"]) == ({-1}, [])
    assert set(found["truth"]) == {0, 1, 2}
    assert "No predictions: " in found["note"]
    assert "3 classes, but the model has 2" in found["note"]
    bare = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", classes=0, image_size=32)
    assert "has no classifier" in dataset_map(bare, str(colors), most=8).about["note"]
    for each in (model, bare):
        flat = dataset_map(each, str(colors / "blue"), most=8).about
        assert set(flat["truth"]) == {-1}
        assert flat["note"].endswith("The images have no labels.")
        assert (set(flat["guess"]) == {-1}) == (each is bare)
    with pytest.raises(DataError, match="no such file or folder: nowhere"):
        dataset_map(model, "nowhere")


def test_damaged_images_and_several_labels(model: Model, colors: Path, tmp_path: Path) -> None:
    files = [shutil.copy(file, tmp_path) for file in sorted((colors / "blue").iterdir())[:9]]
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(files[0]).read_bytes()[:60])
    lines = [{"path": str(file), "labels": ["blue", "red"]} for file in [*files, broken]]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = dataset_map(model, str(tmp_path / "list.jsonl")).about
    assert (len(found["points"]), found["of"]) == (9, 10)
    assert set(found["truth"]) == {-1}
    assert "1 damaged images" not in found["note"]
    assert "1 damaged image is left out (" in found["note"]
    assert "several labels each" in found["note"]
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "x.png").write_bytes(broken.read_bytes())
    with pytest.raises(DataError, match=r"x\.png"):
        dataset_map(model, str(tmp_path / "only"))


class Chart:
    """A map of one image."""

    about: ClassVar[dict[str, Any]] = {"points": [[0.5, 0.5]]}
    images = ("a point",)
    sheet = b"a sheet"

    def content(self, place: int) -> tuple[str, bytes]:
        return "a point", encoded(9)


def finished(map_job: MapJob) -> None:
    map_job.start()
    asyncio.run(until(lambda: not map_job.is_alive()))


def test_errors_are_said_once_and_told_to_the_page() -> None:
    def make(progress: Progress) -> Chart:
        raise DataError("no images there")

    said: list[str] = []
    map_job = MapJob(make, said.append)
    assert map_job.state() == (None, 0.0, "beginning")
    finished(map_job)
    with pytest.raises(DataError, match="no images there"):
        map_job.state()
    assert said == ["no map: no images there"]


def test_a_bug_is_logged_and_the_page_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    map_job = MapJob(lambda progress: 1 / 0)
    finished(map_job)
    with pytest.raises(DataError, match="ZeroDivisionError"):
        map_job.state()
    assert "no map" in caplog.text


def test_it_stops_at_the_next_step() -> None:
    began, steps = threading.Event(), []

    def make(progress: Progress) -> Chart:
        while True:
            progress(0.5, "drawing")
            steps.append(time.sleep(0.001))
            began.set()

    map_job = MapJob(make)
    map_job.start()
    assert began.wait(PATIENCE)
    assert map_job.state() == (None, 0.5, "drawing")
    map_job.stop()
    map_job.join(PATIENCE)
    assert not map_job.is_alive()


def test_the_routes_of_the_map(exploring: Exploring, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def make(progress: Progress) -> Chart:
        progress(0.25, "looking")
        assert gate.wait(PATIENCE)
        return Chart()

    map_job = MapJob(make)
    monkeypatch.setattr(exploring.explorer, "map_job", map_job)
    app = application(exploring.explorer)

    def ask(method: str, path: str) -> Reply:
        return exploring(send(app, method, path))

    map_job.start()
    exploring(until(lambda: map_job.state()[1] > 0))
    assert ask("GET", "/api/state").json["map"] is True
    reply = ask("GET", "/api/map")
    assert (reply.status, reply.json) == (202, {"progress": 0.25, "what": "looking"})
    assert ask("GET", "/api/map/sheet").status == 503
    gate.set()
    exploring(until(lambda: map_job.state()[0] is not None))
    assert ask("GET", "/api/map").json == {"points": [[0.5, 0.5]]}
    assert ask("GET", "/api/map/sheet").body == b"a sheet"
    opened = ask("POST", "/api/map/0")
    assert (opened.status, opened.json["name"]) == (201, "a point")
    assert ask("POST", "/api/map/1").status == 404
