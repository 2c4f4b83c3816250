"""An image in whatever form a program holds it, at every door that takes images."""

import array
import base64
import io
import mmap
import os
import pathlib
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import vitlab
from conftest import photo_folder
from vitlab.data.sources.pictures import as_picture
from vitlab.errors import DataError, ImageError, UserError
from vitlab.models.model import Model

pytestmark = pytest.mark.filterwarnings(  # files are left open, as callers leave them
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Answer(io.RawIOBase):
    """A file that cannot seek and reads a little at a time, as an answer of HTTP."""

    def __init__(self, data: bytes) -> None:
        self.left = io.BytesIO(data)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Give at most 100 bytes."""
        return self.left.readinto(memoryview(buffer)[:100])


class Named:
    """Something with a path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


class Bare:
    """An array of another library."""

    def __init__(self, values: Any) -> None:
        self.values = values

    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


def at_end(file: Any) -> Any:
    """A file as it is after it was written."""
    file.seek(0, os.SEEK_END)
    return file


def in_temporary_file(data: bytes, kind: Callable[[], Any]) -> Any:
    """A temporary file that was just written."""
    file = kind()
    file.write(data)
    return file


def in_archive(data: bytes) -> Any:
    """An open member of a zip."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.png", data)
    return zipfile.ZipFile(whole).open("a.png")


FORMS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda file: file,
    "PurePath": lambda file: pathlib.PurePosixPath(file),
    "PathLike": lambda file: Named(str(file)),
    "DirEntry": lambda file: next(e for e in os.scandir(file.parent) if e.name == file.name),
    "bytes": lambda file: file.read_bytes(),
    "bytearray": lambda file: bytearray(file.read_bytes()),
    "memoryview": lambda file: memoryview(file.read_bytes()),
    "part of a buffer": lambda file: memoryview(b"xx" + file.read_bytes())[2:],
    "array of bytes": lambda file: array.array("B", file.read_bytes()),
    "mmap": lambda file: mmap.mmap(os.open(file, os.O_RDONLY), 0, prot=mmap.PROT_READ),
    "np.bytes_": lambda file: np.bytes_(file.read_bytes()),
    "np.void": lambda file: np.void(file.read_bytes()),
    "pyarrow scalar": lambda file: pa.scalar(file.read_bytes()),
    "pyarrow large binary": lambda file: pa.scalar(file.read_bytes(), pa.large_binary()),
    "pyarrow text": lambda file: pa.scalar(str(file)),
    "pyarrow buffer": lambda file: pa.py_buffer(file.read_bytes()),
    "BytesIO": lambda file: io.BytesIO(file.read_bytes()),
    "BytesIO at its end": lambda file: at_end(io.BytesIO(file.read_bytes())),
    "file": lambda file: file.open("rb"),
    "file without buffer": lambda file: file.open("rb", buffering=0),
    "answer of HTTP": lambda file: Answer(file.read_bytes()),
    "buffered answer": lambda file: io.BufferedReader(Answer(file.read_bytes())),
    "member of a zip": lambda file: in_archive(file.read_bytes()),
    "temporary": lambda file: in_temporary_file(file.read_bytes(), tempfile.TemporaryFile),
    "named temporary": lambda f: in_temporary_file(f.read_bytes(), tempfile.NamedTemporaryFile),
    "spooled": lambda f: in_temporary_file(f.read_bytes(), tempfile.SpooledTemporaryFile),
    "Pillow": lambda file: Image.open(io.BytesIO(file.read_bytes())),
    "array": lambda file: np.asarray(Image.open(file)),
    "buffer of pixels": lambda file: np.asarray(Image.open(file)).data,
    "array of another library": lambda file: Bare(np.asarray(Image.open(file))),
    "tensor": lambda file: torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1),
}  # fmt: skip
BYTES_ALONE = {  # content of a file in an array, where no label can be meant
    "array of one axis": lambda file: np.fromfile(file, np.uint8),
    "tensor of one axis": lambda file: torch.from_numpy(np.fromfile(file, np.uint8)),
    "cell of a table": lambda file: {"bytes": file.read_bytes(), "path": None},
    "cell with a path": lambda file: {"bytes": None, "path": str(file)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of two pictures."""
    return photo_folder(tmp_path_factory.mktemp("forms") / "photos", {"blue": 2, "red": 2})


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """One picture."""
    return sorted((folder / "red").iterdir())[0]


@pytest.fixture(scope="module")
def model() -> Model:
    """Two classes."""
    torch.manual_seed(0)
    shape = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    return vitlab.create(shape, 2, 8, labels=("blue", "red"), zero_head=False).eval()


@pytest.mark.parametrize("form", [*FORMS, *BYTES_ALONE])
def test_preprocess(form: str, file: Path, model: Model) -> None:
    make, prepare = (FORMS | BYTES_ALONE)[form], vitlab.preprocess(model)
    want = prepare(file)
    assert torch.equal(prepare(make(file)), want)
    assert torch.equal(prepare([make(file), make(file)]), want.expand(2, -1, -1, -1))
    assert torch.equal(prepare.one(make(file)), want[0])


@pytest.mark.parametrize("form", FORMS)
def test_classify_alone_in_lists_and_with_labels(form: str, file: Path, model: Model) -> None:
    make = FORMS[form]
    want = [chance for _, chance in vitlab.classify(model, file)[0].classes]
    pair = (make(file), "red")
    for given in (
        make(file), [make(file)], (make(file), make(file)), iter([make(file)]), {"test": [pair]},
        [(make(file), "red")], [[make(file), 1]], [(make(file), np.int64(1))], deque([make(file)]),
    ):  # fmt: skip
        for answer in vitlab.classify(model, given):
            assert answer.error == ""
            assert [name for name, _ in answer.classes] == ["blue", "red"]
            assert [chance for _, chance in answer.classes] == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_labeled_images_are_evaluated(form: str, folder: Path, model: Model) -> None:
    files = [(each, each.parent.name) for each in sorted(folder.glob("*/*"))]
    want = vitlab.evaluate(model, files, workers=0)
    pairs = [(FORMS[form](each), name) for each, name in files]
    found = vitlab.evaluate(model, pairs, workers=0)
    assert (found.images, found.nll) == (want.images, want.nll)


@pytest.mark.parametrize("form", ["bytearray", "BytesIO at its end", "file", "DirEntry"])
def test_search_duplicates_and_embed(form: str, folder: Path, model: Model, tmp_path) -> None:
    files, make = sorted(folder.glob("*/*")), FORMS[form]
    vitlab.embed(model, [make(each) for each in files], tmp_path / "x.parquet", workers=0)
    for given in (make(files[1]), [make(files[1])]):
        (found,) = vitlab.search(tmp_path / "x.parquet", given, 1, weights=model)
        assert found.neighbors[0].row == 1
    pairs = vitlab.duplicates([make(each) for each in files], make(files[2]), workers=0)
    assert (2, 0, 1.0) in [(i, j, score) for i, j, score in pairs]


@pytest.mark.parametrize("form", FORMS)
def test_the_client_sends_one_or_several(form: str, file: Path) -> None:
    content, make = file.read_bytes(), FORMS[form]

    def answer(request: httpx2.Request) -> httpx2.Response:
        row = {"image": "image", "top": [{"class": "red", "probability": 1.0}]}
        count = max(1, request.content.count(b"Content-Disposition"))
        if request.url.path.endswith("/features"):
            return httpx2.Response(200, json={"features": [[1.0]] * count, "errors": []})
        assert content in request.content or form in PIXELS
        return httpx2.Response(200, json={"predictions": [row] * count, "request": "r"})

    with vitlab.Client("http://service.test", transport=httpx2.MockTransport(answer)) as client:
        one = client.predict(make(file))
        assert not isinstance(one, list)
        assert one.classes == (("red", 1.0),)
        assert len(client.predict([make(file), make(file)])) == 2
        assert client.features(make(file)).shape == (1, 1)


PIXELS = ("Pillow", "array", "tensor", "buffer of pixels", "array of another library")


def test_a_file_stands_where_it_stood(file: Path, model: Model) -> None:
    """It is read from its start, as Pillow does, so that it can be given again."""
    with file.open("rb") as opened:
        opened.seek(7)
        first = vitlab.classify(model, opened)[0].classes
        assert opened.tell() == 7
        assert vitlab.classify(model, opened)[0].classes == first
        assert not opened.closed


def test_columns_of_paths(file: Path, model: Model) -> None:
    pandas = pytest.importorskip("pandas")
    names = np.array([str(file)] * 2)
    for given in (names, names.astype(object), pandas.Series(names, index=[5, 9])):
        assert len(vitlab.preprocess(model)(given)) == 2
        assert [each.error for each in vitlab.classify(model, given)] == ["", ""]


class Broken(io.BytesIO):
    """A file that fails."""

    def read(self, size: int | None = -1) -> bytes:
        """Fail."""
        raise RuntimeError("the line\nwas cut")


class Deferred:
    """What an upload of a web framework is: its `read` has to be awaited."""

    async def read(self, size: int) -> bytes:
        """Give nothing."""
        return b""


def closed() -> Any:
    """A file that was closed."""
    file = io.BytesIO(b"x")
    file.close()
    return file


UNREADABLE: list[tuple[Callable[[], Any], str]] = [
    (lambda: io.StringIO("x"), "opened as text: open it with mode 'rb'"),
    (lambda: io.TextIOWrapper(io.BytesIO(b"x")), "opened as text"),
    (closed, "closed file"),
    (Broken, "cannot be read from its file: the line was cut"),
    (Deferred, "Deferred, which reads coroutine"),
    (io.BytesIO, "the file is empty"),
    (lambda: io.BytesIO(b"no picture"), "not a JPEG"),
    (lambda: bytearray(b"no picture"), "not a JPEG"),
]


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(("make", "words"), UNREADABLE)
def test_what_cannot_be_read_is_named(make: Callable[[], Any], words: str, file, model) -> None:
    with pytest.raises(ImageError) as caught:
        vitlab.preprocess(model)(make())
    assert words in str(caught.value)
    assert str(caught.value).startswith("image 0")
    with pytest.raises(ImageError, match=r"^image 1"):
        vitlab.preprocess(model)([file, make()])
    sound, bad = vitlab.classify(model, [file, make()])
    assert sound.error == ""
    assert words in bad.error


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    with Path("/dev/zero").open("rb") as endless, pytest.raises(ImageError, match="more bytes"):
        vitlab.preprocess(model)(endless)


NO_IMAGES = [3, None, 1.5, object(), {"a": 1}, len, Ellipsis, np.int64(3), torch.tensor(1)]


@pytest.mark.parametrize("given", NO_IMAGES)
def test_what_is_no_image_is_one_line(given: Any, model: Model) -> None:
    assert as_picture(given) is None
    with pytest.raises(UserError):
        vitlab.preprocess(model)(given)
    with pytest.raises(ImageError, match="image 0"):
        vitlab.preprocess(model)([given])
    with pytest.raises(DataError):
        vitlab.classify(model, given)


def texts() -> Iterator[object]:
    """What encodes an image as text: a path, as far as anybody knows."""
    yield base64.b64encode(b"\xff\xd8\xff").decode()


def test_a_text_is_a_path(model: Model) -> None:
    with pytest.raises(DataError, match="no such file"):
        vitlab.preprocess(model)(next(iter(texts())))
