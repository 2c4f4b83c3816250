"""Models of clips: still ones are answered as images, moving ones are not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitlab
from models.test_sizes import TINY, a_model
from vitlab.errors import OptionError


def still(frames: int) -> tuple[Tensor, Tensor]:
    image = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return image, image.repeat(1, frames, 1, 1)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize(("frames", "tubelet"), [(2, 2), (5, 5), (8, 2), (6, 1)])
def test_a_still_clip_is_its_image(pool: str, frames: int, tubelet: int) -> None:
    image, clip = still(frames)
    model = a_model(pool=pool, positions_at="every")
    over = vitlab.over_frames(model, frames, tubelet)
    times = frames // tubelet
    assert over.config.grid == (4 * times, 4)
    with torch.inference_mode():
        assert torch.equal(over.stem(clip), model.stem(image).repeat(1, times, 1))
        got, want = over(clip), model(image)
        if times == 1:
            assert torch.equal(got, want)
        elif pool == "mean":  # sums have another order
            torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
        else:  # more patches for one class token
            assert not torch.allclose(got, want, atol=1e-3)
        clip[:, 3 * (tubelet // 2) : 3 * (tubelet // 2) + 3] += 1
        assert not torch.allclose(over(clip), got)


def test_the_stem_is_a_convolution_in_three_dimensions() -> None:
    model = vitlab.create(TINY, 5, 16, stem="tubelet", channels=18, stem_frames=3)
    clip = torch.randn(2, 18, 16, 16)
    layer = model.stem.layers[0]
    weight = layer.weight.unflatten(1, (3, 3)).transpose(1, 2)  # (D, 3, frames, P, P)
    video = clip.unflatten(1, (6, 3)).transpose(1, 2)  # (B, 3, T, H, W)
    want = F.conv3d(video, weight, layer.bias, stride=(3, 4, 4)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.stem(clip), want)
    assert model.config.placed == 1 + 2 * 16


def test_saved_and_loaded(tmp_path: Path) -> None:
    over = vitlab.over_frames(a_model(), 4)
    vitlab.save(over, tmp_path / "over")
    again, (_, clip) = vitlab.load(tmp_path / "over"), still(4)
    assert again.config == over.config
    assert torch.equal(again(clip), over(clip))


WRONG: dict[str, dict[str, Any]] = {
    "channels that are a multiple of 6, three for each of stem_frames=2, not 3": {"channels": 3},
    "needs positions=1d or none": {"positions": "rope"},
    "among all": {"attention": "axial", "pool": "mean", "positions": "none"},
    "takes clips of one image_size": {"fit": "native"},
    "stem_frames must be at least 1": {"stem_frames": 0},
}


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_is_one_line(why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        vitlab.create(TINY, 5, 16, **{"stem": "tubelet", "channels": 12, **WRONG[why]})
    assert "\n" not in str(caught.value)


def test_what_cannot_be_made_a_model_of_clips() -> None:
    wrong: list[dict[str, Any]] = [{"stem": "conv"}, {"channels": 1}]
    for model in (*(a_model(**choices) for choices in wrong), vitlab.fuse(a_model())):
        with pytest.raises(OptionError, match="over_frames needs a Vision Transformer of RGB"):
            vitlab.over_frames(model, 4)
    with pytest.raises(OptionError, match="stem_norm=layer applies only with stem="):
        vitlab.over_frames(a_model(stem_norm="layer"), 4)
    with pytest.raises(OptionError, match="multiple of 9"):
        vitlab.over_frames(a_model(), 4, 3)
    over = vitlab.over_frames(a_model(), 4)
    with pytest.raises(OptionError, match="keep it"):
        over.resize(32)
    with pytest.raises(OptionError, match=r"clips of \(32, 32\) pixels have no positions"):
        over(torch.randn(1, 12, 32, 32))
