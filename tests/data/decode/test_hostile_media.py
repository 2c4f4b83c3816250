"""Sounds and films that a stranger sends: a line of their own, and no work before the limits."""

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import call
from vitlab.data.decode.media import stored_file
from vitlab.data.decode.sound import MOST, MOST_COLUMNS, Clip
from vitlab.errors import ImageError

av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")
RATE = 16_000
MB = 2**20


def refused(data: bytes, work: Callable[[Any], object], words: str) -> None:
    """In one line, which begins with the name."""
    name = "clips/\x1b[31m\nname\u2028.x"
    with pytest.raises(ImageError, match=words) as caught:
        work(stored_file(data, name))
    assert str(caught.value).startswith(r"clips/\x1b[31m\nname\u2028.x: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert "object at" not in str(caught.value)


def decoded(media: Any) -> list[Any]:
    """What the commands ask of it."""
    shape = media.shape()
    if isinstance(media, Clip):
        late = media.fitted((128, 64), 1, lambda rows, columns: (0.9 * columns, 0, columns, rows))
        return [shape, media.fitted((128, 64), 1, None), late, media.decode(1)]
    return [shape, media.decode(3), media.decode(12)]


# ---- sounds


def sound(samples: int, rate: int = RATE, kind: str = "FLAC", subtype: str = "PCM_16") -> bytes:
    """Silence."""
    stream = BytesIO()
    with soundfile.SoundFile(stream, "w", rate, 1, format=kind, subtype=subtype) as file:
        for _ in range(0, samples, 10**5):
            file.write(np.zeros(min(samples, 10**5), np.int16))
    return stream.getvalue()


def riff(
    rate: int = RATE, channels: int = 1, bits: int = 16, code: int = 1, data: bytes = bytes(3200)
) -> bytes:
    """A WAV file whose header says anything."""
    block = channels * bits // 8 % 65536
    header = struct.pack("<HHIIHH", code, channels, rate, rate * block % 2**32, block, bits)
    body = (
        b"WAVEfmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", len(data)) + data
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_samples(data: bytes, samples: int) -> bytes:
    """A FLAC whose header states so many (36 bits after rate, channels and bits)."""
    stated = int.from_bytes(data[18:26], "big") >> 36 << 36 | samples
    return data[:18] + stated.to_bytes(8, "big") + data[26:]


def with_position(data: bytes, position: int) -> bytes:
    """An Ogg whose last page says that it ends there."""
    at = data.rindex(b"OggS") + 6
    return data[:at] + struct.pack("<q", position) + data[at + 8 :]


FLAC, OGG = sound(RATE), sound(RATE, kind="OGG", subtype="VORBIS")
SOUNDS = {
    "hours of silence": (with_samples(FLAC, 2**35), "more than 50,000,000 samples"),
    "a FLAC from a pipe": (with_samples(FLAC, 0), "does not say how long it is: convert it again"),
    "more than there is": (with_samples(FLAC, 40 * RATE), "damaged sound"),
    "a FLAC cut short": (FLAC[: len(FLAC) // 2], "damaged sound"),
    "only its name": (b"fLaC", "damaged sound"),
    "only metadata": (b"fLaC" + (b"\4\xff\xff\xff" + bytes(2**24 - 1)) * 3, "damaged sound"),
    "rate 0": (riff(0), "damaged sound"),
    "rate 1": (riff(1), "unsupported rate of 1 Hz"),
    "rate 384,001": (riff(384_001), "unsupported rate of 384,001 Hz"),
    "rate 2^32 - 1": (riff(2**32 - 1), "damaged sound|unsupported rate|shorter than"),
    "no channel": (riff(channels=0), "damaged sound"),
    "1,025 channels": (riff(channels=1025), "damaged sound"),
    "no bits": (riff(bits=0), "damaged sound"),
    "an unknown code": (riff(code=0x55), "damaged sound"),
    "no samples": (riff(data=b""), "shorter than 25 ms"),
    "infinite": (riff(code=3, bits=32, data=b"\0\0\x80\x7f" * RATE), "not finite"),
    "not a number": (riff(code=3, bits=32, data=b"\0\0\xc0\x7f" * RATE), "not finite"),
    "a WAV without data": (riff()[:40], "damaged sound"),
    "an Ogg cut short": (OGG[: len(OGG) // 2], "damaged sound"),
    **{
        f"an Ogg that ends at {each}": (with_position(OGG, each), "shorter than|damaged|more than")
        for each in (0, -1, -(2**63), 2**40, 2**62, 2**63 - 1)
    },
}


@pytest.mark.parametrize("case", SOUNDS)
def test_sounds_are_refused_in_a_line(case: str) -> None:
    data, words = SOUNDS[case]
    tracemalloc.start()
    refused(data, decoded, words)
    assert tracemalloc.get_traced_memory()[1] < 32 * MB + len(data)
    tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [riff(rate, data=b"\1\2" * rate) for rate in (1000, 1009, 15_991, 44_101, 191_999, 383_983)]
    + [riff(channels=each, data=bytes(1600 * each)) for each in (2, 255, 1000, 1024)]
    + [riff(code=3, bits=32, data=np.full(RATE, 3e38, np.float32).tobytes()), riff()[:2000]],
)
def test_odd_sounds_cost_little(data: bytes) -> None:
    """Odd rates no filter of millions of coefficients, channels no block of a gigabyte."""
    decoded(stored_file(riff(8000), "a.wav"))  # so that everything is imported
    tracemalloc.start()
    (rows, columns, _), seen, _, whole = decoded(stored_file(data, "a.wav"))
    assert tracemalloc.get_traced_memory()[1] < 64 * MB
    tracemalloc.stop()
    assert (rows, columns, 1) == whole.shape
    assert np.array_equal(seen[:, : min(columns, 64)], whole[:, :64])


@pytest.mark.parametrize(("kind", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS")])
def test_of_a_long_sound_only_what_is_seen_is_computed(kind: str, subtype: str) -> None:
    """A few kilobytes of silence are hours of it: 3,000 s here, 300,000 columns."""
    data = sound(MOST * 24 // 25 if kind == "FLAC" else 12_000_000, kind=kind, subtype=subtype)
    assert len(data) < MB
    clip = Clip(data, "a")
    assert clip.shape()[1] > MOST_COLUMNS
    tracemalloc.start()
    for part in (0.0, 0.5, 0.99):
        seen = clip.fitted(
            (128, 64), 1, lambda rows, columns, at=part: (at * columns, 0, columns, 1)
        )
        assert seen.shape == (128, 64, 1)
    refused(data, lambda media: media.decode(1), "longer than 10 minutes: cut it into shorter")
    assert tracemalloc.get_traced_memory()[1] < 32 * MB
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("rate", "kind", "subtype"),
    [(16_000, "FLAC", "PCM_16"), (44_100, "WAV", "FLOAT"), (8000, "FLAC", "PCM_24"),
     (48_000, "OGG", "OPUS"), (22_050, "OGG", "VORBIS"), (11_025, "WAV", "PCM_16"),
     (44_101, "WAV", "PCM_16"), (96_000, "FLAC", "PCM_16"), (99_991, "WAV", "PCM_16")],
)  # fmt: skip
def test_parts_are_those_of_the_whole(rate: int, kind: str, subtype: str) -> None:
    generator, stream = np.random.default_rng(0), BytesIO()
    noise = 0.2 * generator.standard_normal((round(3.7 * rate), 2))
    soundfile.write(stream, noise, rate, format=kind, subtype=subtype)
    clip = Clip(stream.getvalue(), "a")
    whole = clip.decode(1)
    assert whole.shape == clip.shape()
    for left in (0, 1, 57, 200, whole.shape[1] - 40):
        box = (float(left), 0.0, left + 40.0, 128.0)
        assert np.array_equal(
            clip.fitted((128, 40), 1, lambda *_, it=box: it), whole[:, left : left + 40]
        )


# ---- films


def picture(side: int, tall: int = 0) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (side, tall or side), "gray").save(stream, "JPEG")
    return stream.getvalue()


def motion_jpeg(
    pictures: list[bytes], kind: str = "matroska", times: list[int] | None = None, rate: int = 10,
    stated: int = 64, streams: int = 1,
) -> bytes:  # fmt: skip
    """JPEG files as frames, whatever size the header states."""
    stream = BytesIO()
    with av.open(stream, "w", format=kind) as file:
        tracks = [file.add_stream("mjpeg", rate=rate) for _ in range(streams)]
        for track in tracks:
            track.width = track.height = stated
            track.pix_fmt = "yuvj420p"
            track.codec_context.open()
        for number, data in enumerate(pictures):
            packet = av.Packet(data)
            packet.stream, packet.time_base = tracks[number % streams], Fraction(1, rate)
            packet.pts = packet.dts = times[number] if times else number
            packet.is_keyframe = True
            file.mux(packet)
    return stream.getvalue()


def film(codec: str = "mpeg4", kind: str = "mp4", count: int = 10, **options: str) -> bytes:
    """A film of 64 x 64 pixels."""
    stream = BytesIO()
    with av.open(stream, "w", format=kind, options=options) as file:
        track = file.add_stream(codec, rate=10)
        track.width = track.height = 64
        track.pix_fmt, track.codec_context.max_b_frames = "yuv420p", 0
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 9 * number % 256, np.uint8))
            frame.pts, frame.time_base = number, Fraction(1, 10)
            file.mux(track.encode(frame))
        file.mux(track.encode(None))
    return stream.getvalue()


def without_pictures(codec: str) -> bytes:
    """A sound, or subtitles, in a film's container."""
    stream = BytesIO()
    with av.open(stream, "w", format="matroska") as file:
        track = file.add_stream(codec, rate=8000) if codec == "pcm_u8" else file.add_stream(codec)
        packet = av.Packet(b"0,0,Default,,0,0,0,,hello")
        packet.stream, packet.time_base = track, Fraction(1, 1000)
        packet.pts = packet.dts = 0
        packet.duration = 10
        file.mux(packet)
    return stream.getvalue()


def changed(data: bytes, box: bytes, *places: tuple[int, int]) -> bytes:
    """An MP4 with numbers of 32 bits in a box replaced, counted from its name."""
    whole, at = bytearray(data), data.index(box)
    for place, value in places:
        whole[at + place : at + place + 4] = struct.pack(">I", value)
    return bytes(whole)


SMALL, OTHER = picture(64), picture(128, 96)
LIMIT = "16,777,216 pixels"
MP4, FRAGMENTS = film(), film(movflags="frag_keyframe+empty_moov")
huge = cache(lambda: picture(16_000))
FILMS: dict[str, tuple[Callable[[], bytes], str]] = {  # each made by its test alone
    "16,000 a side": (lambda: motion_jpeg([huge()] * 2, stated=16_000), LIMIT),
    "16,000 a side, 64 stated": (lambda: motion_jpeg([huge()]), LIMIT),
    "16,000 a side later": (lambda: motion_jpeg([SMALL, *[huge()] * 3]), LIMIT),
    "sizes change": (
        lambda: motion_jpeg([SMALL, OTHER] * 2),
        "frames of 64 x 64 and 128 x 96 pixels: conv",
    ),
    "sizes change in MP4": (
        lambda: motion_jpeg([SMALL, OTHER] * 2, "mp4"),
        "convert it to one size",
    ),
    "sizes change in AVI": (
        lambda: motion_jpeg([SMALL, OTHER] * 2, "avi"),
        "convert it to one size",
    ),
    "too many frames": (
        lambda: motion_jpeg([SMALL[:2]] * 100_002),
        "100,001 frames, not 1 to 100,000",
    ),
    "a sound": (lambda: without_pictures("pcm_u8"), "no video in it"),
    "subtitles": (lambda: without_pictures("ass"), "no video in it"),
    "no frames": (lambda: film(kind="matroska")[:600], "."),
    "an MP4 cut short": (lambda: MP4[: len(MP4) // 2], "."),
    "no samples": (lambda: changed(MP4, b"stsz", (8, 1), (12, 0)), "0 frames|no video"),
    "10^8 samples of a byte": (lambda: changed(MP4, b"stsz", (8, 1), (12, 10**8)), "."),
    "2^32 - 1 samples of a byte": (lambda: changed(MP4, b"stsz", (8, 1), (12, 2**32 - 1)), "."),
    "10^8 samples in a fragment": (
        lambda: changed(FRAGMENTS, b"trun", (4, 0), (8, 10**8)),
        "100,000,0.. samples in fragments, over",
    ),
    "10^8 samples": (lambda: changed(MP4, b"stsz", (12, 10**8)), "Invalid data"),
    "a sample of 2 GB": (lambda: changed(MP4, b"stsz", (16, 2**31 - 1)), "."),
    "no header": (lambda: changed(MP4, b"stsd", (8, 2**32 - 1), (12, 0)), "."),
}


@pytest.mark.parametrize("case", FILMS)
def test_films_are_refused_in_a_line(case: str) -> None:
    make, words = FILMS[case]
    data = make()
    tracemalloc.start()  # of what Python keeps
    refused(data, decoded, words)
    assert tracemalloc.get_traced_memory()[1] < 32 * MB
    tracemalloc.stop()


def odd_films() -> Iterator[bytes]:
    """Headers with times and rates that cannot be, of frames that can be decoded all the same."""
    yield motion_jpeg([SMALL] * 5, "mp4", rate=1_000_000)
    yield motion_jpeg([SMALL] * 3, times=[0, 1, 2**50])
    yield motion_jpeg([SMALL] * 120, streams=120)
    yield FRAGMENTS
    for box, place in ((b"mvhd", 8), (b"mvhd", 20), (b"mdhd", 8), (b"mdhd", 20), (b"tkhd", 8),
                       (b"tkhd", 24), (b"tkhd", 80), (b"stts", 8), (b"stts", 12), (b"elst", 8),
                       (b"elst", 12), (b"stsc", 8), (b"stco", 8), (b"mdat", -4)):  # fmt: skip
        for value in (0, 1, 2**31 - 1, 2**31, 2**32 - 1):
            yield changed(MP4, box, (place, value))


def test_films_of_odd_times_are_read_or_refused() -> None:
    for data in odd_films():
        media = stored_file(data, "a.mp4")
        try:
            _, one, four = decoded(media)
        except ImageError as error:
            assert str(error).startswith("a.mp4: ")
        else:
            assert (one.shape, four.shape) == ((64, 64, 3), (64, 64, 12))


def test_a_cover_is_no_film() -> None:
    """The picture of a record beside the film, or alone."""
    whole = motion_jpeg([OTHER, *[SMALL] * 9], streams=2)
    for covers, words in (((0,), ""), ((0, 1), "no video in it")):
        stream = BytesIO()
        with av.open(BytesIO(whole)) as source, av.open(stream, "w", format="mp4") as file:
            tracks = [file.add_stream_from_template(each) for each in source.streams.video]
            for number in covers:
                tracks[number].disposition = av.stream.Disposition.attached_pic
            for packet in source.demux():
                if packet.dts is not None and (packet.stream.index or packet.pts == 0):
                    packet.stream = tracks[packet.stream.index]
                    file.mux(packet)
        if words:
            refused(stream.getvalue(), decoded, words)
        else:
            assert stored_file(stream.getvalue(), "a.mp4").decode(3).shape == (64, 64, 3)


def test_commands_skip_hostile_media_and_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitlab.save(vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 16), tmp_path / "model")
    (tmp_path / "films").mkdir()
    for number, case in enumerate(("16,000 a side, 64 stated", "subtitles")):
        (tmp_path / "films" / f"{number}.mkv").write_bytes(FILMS[case][0]())
    words = ["predict", str(tmp_path / "model"), str(tmp_path / "films"), "--workers", "0"]
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "Traceback" not in err
    (tmp_path / "films" / "sound.mp4").write_bytes(MP4)
    status, out, err = call(capsys, *words)
    assert (status, out.count("sound.mp4")) == (0, 1)
    assert all(f"{number}.mkv: " in err for number in range(2))
