"""Sounds as pictures: transformers' features to half a level, and what cannot be read."""

from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitlab
from conftest import call, photo_folder
from oracles import peers
from vitlab.data.decode import formats
from vitlab.data.decode.media import stored_file
from vitlab.data.decode.sound import PADDING, Clip, log_mel
from vitlab.data.decode.spectrograms import LOGARITHMS, STEP, normalization
from vitlab.data.open import open_images
from vitlab.data.summary import input_shape
from vitlab.errors import DataError, ImageError
from vitlab.images import ImageSpec

soundfile = pytest.importorskip("soundfile")
RATE = 16_000


def wave(seconds: float = 1.0, rate: int = RATE, low: float = 300.0) -> NDArray[np.float32]:
    """A rising tone in a little noise."""
    time = np.arange(round(rate * seconds)) / rate
    noise = 0.01 * np.random.default_rng(0).standard_normal(time.size)
    return (0.3 * np.sin(2 * np.pi * (low * time + 400 * time**2)) + noise).astype(np.float32)


def encoded(samples: Any, rate: int = RATE, kind: str = "WAV", subtype: str = "FLOAT") -> bytes:
    stream = BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=subtype)
    return stream.getvalue()


def folder(root: Path, classes: str = "high low", count: int = 6) -> Path:
    for number, name in enumerate(classes.split()):
        (root / name).mkdir(parents=True)
        for each in range(count):
            samples = wave(0.3 + each / 50, low=300 + 900 * number + 30 * each)
            soundfile.write(root / name / f"{each}.wav", samples, RATE)
    return root


@pytest.mark.filterwarnings("ignore:At least one mel filter")  # of transformers's own
def test_the_features_are_transformers() -> None:
    peers.transformers()
    from transformers import ASTFeatureExtractor

    extract = ASTFeatureExtractor(max_length=120)
    want = extract(wave(), sampling_rate=RATE, return_tensors="np")["input_values"][0].T
    values = (log_mel(wave(), 128) - LOGARITHMS["mean"]) / LOGARITHMS["std"]
    assert np.abs(values - want[:, : values.shape[1]]).max() < 1e-5
    spec = ImageSpec(image_size=(128, 120), channels=1, **normalization(**LOGARITHMS))
    batch = vitlab.preprocess(spec)(encoded(wave()))
    assert batch.shape == (1, 1, 128, 120)
    assert np.abs(batch[0, 0].numpy() - want).max() < STEP / 2 / LOGARITHMS["std"] + 1e-5
    assert np.abs(batch[0, 0, :, 98:].numpy() - want[:, 98:]).max() < 1e-6  # padding


def test_formats_channels_and_rates_have_the_same_levels() -> None:
    clip = Clip(encoded(wave()), "a")
    for kind, subtype in (("WAV", "PCM_24"), ("FLAC", "PCM_16")):
        got = stored_file(encoded(wave(), kind=kind, subtype=subtype), "a").decode(1)
        assert np.abs(got - clip.decode(1).astype(int)).max() <= 1
    stereo = np.stack([2 * wave(), 0 * wave()], 1)
    assert np.array_equal(Clip(encoded(stereo), "b").decode(1), clip.decode(1))
    faster = Clip(encoded(wave(rate=44_100), 44_100), "c")
    assert faster.shape() == clip.shape() == (128, 98, 1)
    tone = slice(20, 60)  # the noise differs
    assert np.abs(faster.decode(1)[tone].argmax(0) - clip.decode(1)[tone].argmax(0)).max() <= 1
    assert clip.decode(3).shape == (128, 98, 3)


def test_a_clip_is_cut_or_padded_never_stretched() -> None:
    clip = Clip(encoded(wave()), "a")
    whole = clip.decode(1)
    assert np.array_equal(clip.fitted((128, 40), 1, None), whole[:, :40])
    longer = clip.fitted((128, 140), 1, None)
    assert np.array_equal(longer[:, :98], whole)
    assert (longer[:, 98:] == PADDING).all()
    for left, first in ((0, 0), (48, 58), (24, 29)):  # of a random box of half of the time
        part = clip.fitted((128, 40), 1, lambda rows, columns, x=left: (x, 5, x + 50, 60))
        assert np.array_equal(part, whole[:, first : first + 40])
    late = clip.fitted((128, 140), 1, lambda rows, columns: (48, 0, 98, 128))
    assert np.array_equal(late[:, 42:], whole)
    assert clip.fitted((32, 40), 1, None).shape == (32, 40, 1)


BAD = {
    "shorter than 25 ms": encoded(wave(0)),
    "unsupported rate of 500 Hz": encoded(wave(), 500),
    "samples that are not finite": encoded(np.full(RATE, np.nan)),
    r"damaged sound \(": b"RIFF\0\0\0\0WAVE" + bytes(50),
}


def test_bad_clips_are_errors_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for why, data in BAD.items():
        with pytest.raises(ImageError, match=f"^a.wav: {why}") as caught:
            (clip := stored_file(data, "a.wav")).shape()
            clip.decode(1)
        assert "\n" not in str(caught.value)
    with pytest.raises(ImageError, match=r"a\.wav: sounds and films cannot be copied as small"):
        stored_file(encoded(wave()), "a.wav").compact(8, 90)
    with monkeypatch.context() as patch:
        patch.setattr("vitlab.data.decode.sound.MOST", RATE)
        assert stored_file(encoded(wave()), "a.wav").shape() == (128, 98, 1)
        for long in (encoded(wave(1.01)), encoded(wave(1.01, RATE // 2), RATE // 2)):
            with pytest.raises(ImageError, match="more than 16,000 samples: cut it into shorter"):
                stored_file(long, "a.wav").shape()
    whole, generator = encoded(wave(), kind="FLAC", subtype="PCM_16"), np.random.default_rng(0)
    for _ in range(30):
        data = bytearray(whole)
        for place in generator.integers(4, len(data), 4):
            data[place] = generator.integers(256)
        try:
            stored_file(bytes(data), "a.flac").decode(1)
        except ImageError as error:
            assert "a.flac" in str(error)


def test_folders_of_sounds(tmp_path: Path) -> None:
    opened = open_images(str(folder(tmp_path / "sounds")))
    assert opened.unsplit.classes == ("high", "low")
    assert input_shape(opened.unsplit) == ((128, 48), 1)
    photo_folder(tmp_path / "sounds", {"photos": 2})
    with pytest.raises(DataError, match="classes of images, sounds or films together: keep"):
        open_images(str(tmp_path / "sounds"))
    (tmp_path / "sounds" / "high" / "0.wav").rename(tmp_path / "sounds" / "photos" / "0.wav")
    opened = open_images(str(tmp_path / "sounds" / "photos"), "optional")
    assert (len(opened.every()), len(opened.notes)) == (2, 1)  # images come first
    assert "not images in a supported format (1 with .wav)" in opened.notes[0]


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.data.sources.file_tree.READABLE", frozenset())
    with pytest.raises(DataError, match=r'\.wav files in .*: pip install "vitlab\[audio\]" reads'):
        open_images(str(folder(tmp_path / "sounds")))
    assert "not images" in formats.unread_lines("a", Counter({".wav": 2}))[0]  # beside images


def test_a_run_on_sounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sounds, run = folder(tmp_path / "sounds", count=12), str(tmp_path / "run")
    (sounds / "low" / "silent.wav").write_bytes(BAD["shorter than 25 ms"])
    words = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/16", "--steps", "3", "--batch", "8"]
    status, out, err = call(capsys, "train", str(sounds), "--out", run, "--workers", "0", *words)
    assert not status, err
    assert "log-mel spectrograms of 16 kHz" in out + err
    assert "silent.wav: shorter than 25 ms" in out + err
    assert "no test image is a near-duplicate" in out + err  # as alike as spectrograms are
    assert not vitlab.load(run).config.size[1] % 16
    status, out, err = call(capsys, "predict", run, str(sounds / "high" / "0.wav"))
    assert not status, err
    assert "0.wav" in out
