"""Tokenizers: DALL-E's state dicts, and the model of DALLE-pytorch, against their descriptions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import vitlab
from oracles.dalle import Decoder, DiscreteVAE, Encoder, save_whole
from vitlab.errors import WeightsError
from vitlab.models.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(8, 20).eval()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(1)
    return Decoder(8, 20, 5).eval()


def loaded(path: Path, **choices: Any) -> Tokenizer:
    model = vitlab.load(path, **choices)
    assert isinstance(model, Tokenizer)
    return model


def pixels(side: int = 24) -> Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(2))


def test_the_encoder_tells_the_same_codes(encoder: Encoder, tmp_path: Path) -> None:
    torch.save(encoder.state_dict(), tmp_path / "encoder.pkl")
    model = loaded(tmp_path / "encoder.pkl")
    assert model.config.name == "DALL-E(codes=20,width=8)/8"
    assert (model.config.mean, model.config.std) == ((0, 0, 0), (1, 1, 1))
    assert not model.config.decoder
    with torch.no_grad():
        theirs = encoder(0.8 * pixels() + 0.1)
        torch.testing.assert_close(model.logits(pixels()), theirs, atol=1e-5, rtol=0)
        assert torch.equal(model.codes(pixels()), theirs.argmax(1))


def test_both_state_dicts_are_the_whole_tokenizer(
    encoder: Encoder, decoder: Decoder, tmp_path: Path
) -> None:
    state = {f"encoder.{name}": each for name, each in encoder.state_dict().items()}
    state |= {f"decoder.{name}": each for name, each in decoder.state_dict().items()}
    torch.save(state, tmp_path / "both.pt")
    save_file(state, tmp_path / "both.safetensors")
    for path in (tmp_path / "both.pt", tmp_path / "both.safetensors"):
        model = loaded(path, image_size=24)
        assert model.config.name == "DALL-E(codes=20,code_width=5,width=8)/8"
        assert model.config.laplace
        with torch.no_grad():
            codes = model.codes(pixels())
            theirs = decoder(F.one_hot(codes, 20).movedim(-1, 1).float())
            torch.testing.assert_close(model.outputs(codes), theirs, atol=1e-5, rtol=0)
            back = ((theirs[:, :3].sigmoid() - 0.1) / 0.8).clamp(0, 1)
            torch.testing.assert_close(model.decode(codes), back)
        vitlab.save(model, tmp_path / "own")
        assert torch.equal(loaded(tmp_path / "own").codes(pixels()), codes)


def test_whole_modules_as_openai_saved_them_are_refused_and_not_run(
    encoder: Encoder, tmp_path: Path
) -> None:
    """The line says what to save instead, which loads (as above)."""

    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return open, (str(tmp_path / "sprung"), "w")  # type: ignore[return-value]

    armed = Encoder(8, 20)
    armed.trap = Trap()  # type: ignore[assignment]
    for module in (encoder, armed):
        save_whole(module, str(tmp_path / "encoder.pkl"))
        with pytest.raises(WeightsError, match=r"contains dall_e\.encoder\.Encoder") as said:
            vitlab.load(tmp_path / "encoder.pkl")
        assert "torch.save(model.state_dict(), FILE)" in str(said.value)
        assert len(str(said.value).removeprefix(str(tmp_path))) < 200
    assert not (tmp_path / "sprung").exists()


def test_a_decoder_alone_is_told(decoder: Decoder, tmp_path: Path) -> None:
    torch.save(decoder.state_dict(), tmp_path / "decoder.pkl")
    with pytest.raises(WeightsError, match=r"has DALL-E's decoder alone: give the encoder's"):
        vitlab.load(tmp_path / "decoder.pkl")


@pytest.mark.parametrize("residual", [0, 2])
def test_ours_is_the_discrete_vae_of_dalle_pytorch(residual: int) -> None:
    torch.manual_seed(4)
    theirs = DiscreteVAE(20, 6, 8, halvings=3, residual=residual).eval()
    name = f"dVAE(codes=20,code_width=6,width=8,depth={residual})/8"
    model: Any = vitlab.create(name, image_size=64, laplace=False).eval()
    own, other = model.state_dict(), theirs.state_dict()
    mine = [
        n for part in ("encoder", "score", "codebook", "decoder") for n in own if n.startswith(part)
    ]
    names = [n for part in ("encoder", "codebook", "decoder") for n in other if n.startswith(part)]
    model.load_state_dict({n: other[m] for n, m in zip(mine, names, strict=True)})
    images = pixels() * 2 - 1
    with torch.no_grad():
        scores = theirs.encoder(images)
        torch.testing.assert_close(model.logits(images), scores, atol=1e-5, rtol=0)
        decoded = theirs.decode(scores.argmax(1))
        torch.testing.assert_close(model.decode(model.codes(images)), decoded, atol=1e-5, rtol=0)
