"""A stem and a position scheme that only this file knows go everywhere the built-in ones go."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from conftest import LIGHT
from vitlab.cli import main
from vitlab.errors import OptionError
from vitlab.models import registry
from vitlab.models.config import ViTConfig
from vitlab.models.create import build
from vitlab.models.layers import reset_dense
from vitlab.models.positions.learned import resample
from vitlab.models.positions.positions import Added
from vitlab.models.stems.stem import Stem
from vitlab.optim.optimizers import decayed

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def define() -> None:
    """Defining the classes is all it takes."""

    class Windowed(Stem):
        """Patches with a learned gain for each place, which fusing folds."""

        name = "windowed"
        uses = ("stem_bias",)
        undecayed = ("gain",)

        def __init__(self, config: ViTConfig) -> None:
            super().__init__(config)
            side = config.patch
            self.gain, self.folded = nn.Parameter(torch.empty(config.grid)), False
            self.layer = nn.Conv2d(config.channels, config.width, side, side, bias=config.stem_bias)

        @staticmethod
        def check(config: ViTConfig) -> None:
            if config.patch < 3:
                raise OptionError(f"stem=windowed needs a patch of at least 3, not {config.patch}")

        def reset_parameters(self, generator: torch.Generator | None = None) -> None:
            reset_dense(self.layer, generator)
            nn.init.ones_(self.gain)

        def fuse(self) -> None:
            self.layer.weight.mul_(2)
            self.folded = True

        def forward(self, images: Tensor) -> Tensor:
            weight = self.layer.weight * (1 if self.folded else 2)
            tokens = nn.functional.conv2d(images, weight, self.layer.bias, self.config.patch)
            return (tokens * self.gain).flatten(2).transpose(1, 2)

        @staticmethod
        def resized(
            tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig
        ) -> dict[str, Tensor]:
            gain = resample(tensors["gain"].reshape(1, -1, 1), old.grid, new.grid, old.resampling)
            return tensors | {"gain": gain.reshape(new.grid)}

    class Waves(Added):
        """Computed waves along the raster order, with a learned height for each channel."""

        name = "waves"
        undecayed = ("height",)
        waves: Tensor

        def __init__(self, config: ViTConfig) -> None:
            super().__init__(config)
            self.height = nn.Parameter(torch.empty(1, config.width))
            shape = (1, config.placed, config.width)
            self.register_buffer("waves", torch.empty(shape), persistent=False)

        def reset_parameters(self, generator: torch.Generator | None = None) -> None:
            nn.init.ones_(self.height)
            self.refresh()

        def refresh(self) -> None:
            _, tokens, width = self.waves.shape
            place, device = torch.arange(tokens), self.waves.device
            angles = place[:, None] / 10 ** (torch.arange(width) / width)
            self.waves = angles.sin()[None].to(device)

        def table_of(self) -> Tensor:
            return self.height * self.waves


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two are there in these tests only."""
    for field, defined in registry.DEFINED.items():
        monkeypatch.setitem(registry.DEFINED, field, dict(defined))
    define()


def a_model(image_size: int = 8, **choices: Any) -> Any:
    toys = {"stem": "windowed", "positions": "waves", "channels": 1}
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(NAME, 5, image_size, generator=generator, **toys | choices)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def images(side: int = 8) -> Tensor:
    return torch.randn(3, 1, side, side, generator=torch.Generator().manual_seed(1))


def test_they_train_and_are_loaded_again(tmp_path: Path) -> None:
    recipe = vitlab.recipe(
        "digits", model=NAME, stem="windowed", positions="waves", steps=4, batch=32
    )
    run = vitlab.train(recipe, tmp_path / "run", host=LIGHT)
    again = vitlab.load(tmp_path / "run")
    assert (again.config.stem, again.config.positions) == ("windowed", "waves")
    assert len(again.positions) == 1
    size = again.config.size
    pixels = torch.randn(2, again.config.channels, *size)
    with torch.inference_mode():
        assert torch.equal(again(pixels), run.model.cpu().eval()(pixels))
    fresh = build(again.config)
    assert not torch.equal(again.stem.gain, fresh.stem.gain)
    assert not torch.equal(again.positions[0].height, fresh.positions[0].height)


@pytest.mark.parametrize("at", ["stem", "every", "shared"])
def test_they_are_saved_and_loaded_bit_for_bit(at: str, tmp_path: Path) -> None:
    model = a_model(positions_at=at)
    assert len(model.positions) == (2 if at == "every" else 1)
    again = vitlab.load(vitlab.save(model, tmp_path / "saved"))
    assert "waves" not in str(list(again.state_dict()))  # computed, not stored
    with torch.inference_mode():
        assert torch.equal(again(images()), model(images()))
        silent = a_model(positions_at=at)
        for positions in silent.positions:
            nn.init.zeros_(positions.height)
        assert not torch.equal(silent(images()), model(images()))


def test_they_follow_another_image_size(tmp_path: Path) -> None:
    model = a_model()
    larger = vitlab.load(vitlab.save(model, tmp_path / "saved"), image_size=16)
    assert larger.stem.gain.shape == (4, 4)
    torch.testing.assert_close(larger.stem.gain[::3, ::3], model.stem.gain)  # aligned corners
    assert larger.positions[0].at((4, 4)).waves.shape == (1, 17, 16)
    assert larger(images(16)).shape == (3, 5)


def test_they_are_fused_counted_exported_and_decayed() -> None:
    model, usual = a_model(), vitlab.create(NAME, 5, 8, channels=1)
    fused, program = vitlab.fuse(model), torch.export.export(model, (images(),))
    assert fused.stem.folded
    assert not model.stem.folded
    with torch.inference_mode():
        for form in (fused, program.module()):
            torch.testing.assert_close(form(images()), model(images()), rtol=1e-4, atol=1e-5)
    price, other = vitlab.measure.cost(model), vitlab.measure.cost(usual)
    assert price.macs == other.macs  # a gain and waves are no matrix products
    assert price.params == other.params + 2 * 2 + 16 - 5 * 16
    names = decayed(model)
    assert "stem.layer.weight" in names
    assert not {"stem.gain", "positions.0.height"} & names


def test_their_refusals_and_names_reach_every_face(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=r"^stem=windowed needs a patch of at least 3, not 2$"):
        a_model(patch=2)
    with pytest.raises(OptionError, match="stem_norm=batch applies only with stem=conv, hmlp or l"):
        a_model(stem_norm="batch")
    with pytest.raises(OptionError, match=r"stem_bias=False applies only with .* or windowed"):
        a_model(stem="hmlp", patch=8, stem_bias=False)
    assert a_model(stem_bias=False).stem.layer.bias is None
    with pytest.raises(OptionError, match=r"must be one of 1d, .*, waves, not"):
        a_model(positions="wave")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["measure", NAME, "--stem", "windowed", "--image-size", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["model"] == NAME
    with pytest.raises(TypeError, match=r"stem=windowed is already define\.<locals>\.Windowed"):
        define()
