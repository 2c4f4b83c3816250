"""Films as pictures of several frames: evenly spaced in time, and what cannot be read."""

from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitlab
from conftest import call
from vitlab.data.decode.media import stored_file
from vitlab.data.open import open_images
from vitlab.errors import ImageError

av = pytest.importorskip("av")
SIDE = 32


def frame(number: int, tint: int = 0) -> NDArray[np.uint8]:
    """A picture whose brightness is its number."""
    pixels = np.full((SIDE, SIDE, 3), 10 * number, np.uint8)
    pixels[8:16, :, tint] = 255
    return pixels


def film(
    pictures: list[Any], times: list[int] | None = None, codec: str = "ffv1", kind: str = "matroska"
) -> bytes:
    """A film with a picture at each time, in tenths of a second."""
    stream = BytesIO()
    with av.open(stream, "w", format=kind) as file:
        track = file.add_stream(codec, rate=10)
        track.width = track.height = SIDE
        track.pix_fmt = "bgr0" if codec == "ffv1" else "yuv420p"
        track.bit_rate, track.codec_context.max_b_frames = 8_000_000, 2 * (codec == "mpeg4")
        track.codec_context.time_base = track.time_base = Fraction(1, 10)
        for number, pixels in enumerate(pictures):
            each = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            each.pts, each.time_base = times[number] if times else number, Fraction(1, 10)
            file.mux(track.encode(each))
        file.mux(track.encode(None))
    return stream.getvalue()


def test_frames_are_evenly_spaced() -> None:
    clip = stored_file(film([frame(n) for n in range(12)]), "a.mkv")
    assert clip.shape() == (SIDE, SIDE, 3)
    for count, want in ((1, [6]), (3, [2, 6, 10]), (12, [*range(12)]), (24, [*range(12)] * 2)):
        pixels = clip.decode(3 * count)
        assert pixels.shape == (SIDE, SIDE, 3 * count)
        assert (pixels[0, 0, ::3] // 10).tolist() == sorted(want)
    assert np.array_equal(clip.decode(3), frame(6))
    assert clip.decode(1).shape == (SIDE, SIDE, 1)
    old = stored_file(film([frame(n) for n in range(12)], kind="avi"), "a.avi")
    assert np.array_equal(old.decode(9), clip.decode(9))


def test_variable_frame_rates_and_later_frames_are_followed() -> None:
    times = [0, 1, 2, 3, 4, 5, 30]  # the last but one is shown for 2.5 seconds
    clip = stored_file(film([frame(n) for n in range(7)], times), "a.mkv")
    assert (clip.decode(12)[0, 0, ::3] // 10).tolist() == [4, 5, 5, 6]
    clip = stored_file(film([frame(n) for n in range(24)], codec="mpeg4"), "a.mkv")
    got = clip.decode(18)[0, 0, ::3].astype(int)
    assert np.abs(got - [20, 60, 100, 140, 180, 220]).max() < 8  # it is lossy


def test_frames_that_a_cut_leaves_out_are_not_seen() -> None:
    """A cut without decoding keeps what its first frames depend on, marked as not to be shown."""
    whole, stream = (
        BytesIO(film([frame(n) for n in range(24)], codec="mpeg4", kind="mp4")),
        BytesIO(),
    )
    with av.open(whole) as source, av.open(stream, "w", format="mp4") as file:
        track = file.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                shift = round(Fraction(6, 10) / packet.time_base)
                packet.pts, packet.dts, packet.stream = (
                    packet.pts - shift,
                    packet.dts - shift,
                    track,
                )
                file.mux(packet)
    got = stored_file(stream.getvalue(), "a.mp4").decode(27)[0, 0, ::3].astype(int)
    assert np.abs(got - [70, 90, 110, 130, 150, 170, 190, 210, 230]).max() < 8


def test_a_batch_of_a_tubelet_model() -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 16,
                          stem="tubelet", channels=12)  # fmt: skip
    clips = [film([frame(n, t) for n in range(8)]) for t in (0, 1)]
    batch = vitlab.preprocess(model)(clips)
    assert batch.shape == (2, 12, 16, 16)
    single = vitlab.preprocess(vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 16))
    assert (batch[0, 6:9] == single(frame(5, 0))[0]).all()  # each as a picture is resized


def moving(codec: str, kind: str, options: dict[str, str], marked: bool = False) -> bytes:
    """Noise that moves, at times that are not even; `marked`: all packets as keyframes."""
    noise, stream = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8), BytesIO()
    with av.open(stream, "w", format=kind) as file:
        track = file.add_stream(codec, rate=10, options=options)
        track.width, track.height, track.pix_fmt = 64, 48, "bgr0" if codec == "ffv1" else "yuv420p"
        track.codec_context.time_base = Fraction(1, 10)
        for number in range(50):
            pixels = np.ascontiguousarray(np.roll(noise, 3 * number, (0, 1)))
            each = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            each.pts, each.time_base = number + number // 7 * 2, Fraction(1, 10)
            for packet in track.encode(each) + (track.encode(None) if number == 49 else []):
                packet.is_keyframe = packet.is_keyframe or marked
                file.mux(packet)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("codec", "kind", "options"),
    [("mpeg4", "mp4", {"g": "12", "bf": "2"}), ("mpeg4", "matroska", {"g": "10"}),
     ("mpeg4", "avi", {"g": "12"}), ("mpeg2video", "mov", {"g": "12", "bf": "2"}),
     ("ffv1", "matroska", {"g": "8"}), ("libvpx", "webm", {"g": "12", "deadline": "realtime"}),
     ("libvpx-vp9", "webm", {"g": "12", "lag-in-frames": "10", "cpu-used": "8"}),
     ("libx264", "mp4", {"x264-params": "keyint=12:bframes=3:open-gop=1:scenecut=0"}),
     ("libx264", "matroska", {"x264-params": "keyint=12:intra-refresh=1:bframes=0"}),
     ("libx265", "mp4", {"x265-params": "keyint=12:bframes=3:open-gop=1:log-level=none"})],
)  # fmt: skip
@pytest.mark.parametrize("marked", [False, True])
def test_frames_are_those_of_decoding_all(
    codec: str, kind: str, options: dict[str, str], marked: bool
) -> None:
    """Also where frames before a keyframe follow it, or what is marked as a keyframe is none."""
    try:
        data = moving(codec, kind, options, marked)
    except (ValueError, av.error.FFmpegError):
        pytest.skip("this build of FFmpeg does not write it")
    with av.open(BytesIO(data)) as file:
        frames = {each.pts: each.to_ndarray(format="rgb24") for each in file.decode(video=0)}
    times = np.array(sorted(frames))
    end = (times[-1] - times[0]) * (1 + 1 / (len(times) - 1))
    clip = stored_file(data, f"a.{kind}")
    for count in (1, 3, 8, 30):
        middles = times[0] + (np.arange(count) + 0.5) * end / count
        wanted = times[np.searchsorted(times, middles, "right") - 1]
        whole = np.concatenate([frames[each] for each in wanted], 2)
        assert np.array_equal(clip.decode(3 * count), whole)


BAD = {
    "Invalid data": b"\x1aE\xdf\xa3" + bytes(100),
    "0 frames": film([frame(0)])[:600],
    "frames have 3 channels, which do not make 7": film([frame(0)]),
}


def test_bad_films_are_errors_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for why, data in BAD.items():
        with pytest.raises(ImageError, match=f"a.mkv: .*{why}") as caught:
            stored_file(data, "a.mkv").decode(7 if "7" in why else 6)
        assert "\n" not in str(caught.value)
    whole, generator = film([frame(n) for n in range(6)]), np.random.default_rng(0)
    with monkeypatch.context() as patch:
        patch.setattr("vitlab.data.decode.film.MAX_PIXELS", 2 * SIDE**2)
        assert stored_file(whole, "a.mkv").decode(6).shape == (SIDE, SIDE, 6)
        with pytest.raises(ImageError, match=r"3 frames of .* pixels exceed the limit of"):
            stored_file(whole, "a.mkv").decode(9)
    for _ in range(30):
        data = bytearray(whole)
        for place in generator.integers(4, len(data), 4):
            data[place] = generator.integers(256)
        try:
            stored_file(bytes(data), "a.mkv").decode(6)
        except ImageError as error:
            assert "a.mkv" in str(error)


def test_a_run_on_films(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tint, name in enumerate(("blue", "red")):
        (tmp_path / "films" / name).mkdir(parents=True)
        for number in range(5):
            pictures = [frame(n + number, tint) for n in range(4)]
            (tmp_path / "films" / name / f"{number}.mkv").write_bytes(film(pictures))
        (tmp_path / "films" / name / "sound.wav").write_bytes(b"RIFF")
    opened = open_images(str(tmp_path / "films"))
    assert len(opened.unsplit) == 10  # sounds beside them are left out
    image = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, SIDE)
    vitlab.save(vitlab.over_frames(image, 4), tmp_path / "start")
    words = ["--from", str(tmp_path / "start"), "--head-start", "zero", "--steps", "2"]
    words += ["--batch", "4", "--workers", "0", "--out", str(tmp_path / "run")]
    status, _, err = call(capsys, "finetune", str(tmp_path / "films"), *words)
    assert not status, err
    model = vitlab.load(tmp_path / "run")
    assert model.config.times == 2
    assert vitlab.evaluate(model, str(tmp_path / "films"))["images"]
