"""Published tokenizers: DALL-E's two files; and our small one against DALLE-pytorch's."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
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


@pytest.fixture(scope="module")
def folder(encoder: Encoder, decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as BEiT's code expects it: both modules, saved whole."""
    path = tmp_path_factory.mktemp("dalle")
    save_whole(encoder, str(path / "encoder.pkl"))
    save_whole(decoder, str(path / "decoder.pkl"))
    return path


def loaded(path: Path, **choices: Any) -> Tokenizer:
    model = vitlab.load(path, **choices)
    assert isinstance(model, Tokenizer)
    return model


def pixels(side: int = 24) -> Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(2))


def test_the_encoder_tells_the_same_codes(encoder: Encoder, folder: Path) -> None:
    model = loaded(folder / "encoder.pkl")
    assert model.config.name == "DALL-E(codes=20,width=8)/8"
    assert (model.config.mean, model.config.std) == ((0, 0, 0), (1, 1, 1))
    assert not model.config.decoder
    with torch.no_grad():
        theirs = encoder(0.8 * pixels() + 0.1)
        torch.testing.assert_close(model.logits(pixels()), theirs, atol=1e-5, rtol=0)
        assert torch.equal(model.codes(pixels()), theirs.argmax(1))


def test_both_files_are_the_whole_tokenizer(
    encoder: Encoder, decoder: Decoder, folder: Path, tmp_path: Path
) -> None:
    state = {f"encoder.{name}": each for name, each in encoder.state_dict().items()}
    state |= {f"decoder.{name}": each for name, each in decoder.state_dict().items()}
    torch.save(state, tmp_path / "both.pt")
    save_file(state, tmp_path / "both.safetensors")
    for path in (folder, tmp_path / "both.pt", tmp_path / "both.safetensors"):
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


def test_state_dicts_of_the_encoder(encoder: Encoder, tmp_path: Path) -> None:
    state = encoder.state_dict()
    torch.save(state, tmp_path / "e.pt")
    torch.save({"state_dict": {f"module.{n}": t for n, t in state.items()}}, tmp_path / "w.pt")
    save_file(state, tmp_path / "e.safetensors")
    with torch.no_grad():
        theirs = encoder(0.8 * pixels() + 0.1)
        for name in ("e.pt", "w.pt", "e.safetensors"):
            found = loaded(tmp_path / name, image_size=24).logits(pixels())
            torch.testing.assert_close(found, theirs, atol=1e-5, rtol=0)


def test_fewer_groups_and_blocks(tmp_path: Path) -> None:
    torch.manual_seed(3)
    small = Encoder(16, 7, count=1, groups=3).eval()
    torch.save(small.state_dict(), tmp_path / "e.pt")
    model = loaded(tmp_path / "e.pt")
    assert model.config.name == "DALL-E(codes=7,width=16,depth=1)/4"
    with torch.no_grad():
        theirs = small(0.8 * pixels() + 0.1)
        torch.testing.assert_close(model.logits(pixels()), theirs, atol=1e-5, rtol=0)


def test_nothing_in_a_whole_module_is_run(folder: Path, tmp_path: Path) -> None:
    """A call hidden in the module's attributes is written down, not made."""

    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return open, (str(tmp_path / "sprung"), "w")  # type: ignore[return-value]

    armed = Encoder(8, 20)
    armed.trap = Trap()  # type: ignore[assignment]
    save_whole(armed, str(tmp_path / "encoder.pkl"))
    assert loaded(tmp_path / "encoder.pkl").config.codes == 20
    assert not (tmp_path / "sprung").exists()


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


def test_other_whole_modules_and_damaged_ones_are_refused(folder: Path, tmp_path: Path) -> None:
    torch.save(Other(), tmp_path / "other.pkl")
    with pytest.raises(WeightsError, match="is a whole pickled object of class"):
        vitlab.load(tmp_path / "other.pkl")
    with pytest.raises(WeightsError, match=r"has DALL-E's decoder alone: give encoder\.pkl"):
        vitlab.load(folder / "decoder.pkl")
    with zipfile.ZipFile(folder / "encoder.pkl") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    numbers = next(name for name in files if name.endswith("/data/3"))
    with zipfile.ZipFile(tmp_path / "cut.pkl", "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw[:-4] if name == numbers else raw)
    with pytest.raises(WeightsError, match="a tensor does not fit its numbers"):
        vitlab.load(tmp_path / "cut.pkl")
    place = next(name for name in files if name.endswith("/data.pkl"))
    with zipfile.ZipFile(tmp_path / "broken.pkl", "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw[:5000] if name == place else raw)
    with pytest.raises(WeightsError, match=r"broken\.pkl"):
        vitlab.load(tmp_path / "broken.pkl")
    (tmp_path / "list.pkl").write_bytes(pickle.dumps(["dall_e.encoder.Encoder"]))
    with pytest.raises(WeightsError):
        vitlab.load(tmp_path / "list.pkl")


def renamed(state: dict[str, Tensor], halvings: int, depth: int) -> dict[str, Tensor]:
    """The tensors of DALLE-pytorch's by our names, which are in the same order."""
    start = depth + 1 if depth else 0
    names = {f"encoder.{n}.0": f"encoder.reduce.{n}" for n in range(halvings)}
    names |= {f"encoder.{halvings + depth}": "score", "codebook": "codebook"}
    names |= {"decoder.0": "decoder.enter"} if depth else {}
    names |= {f"decoder.{start + n}.0": f"decoder.enlarge.{n}" for n in range(halvings)}
    names |= {f"decoder.{start + halvings}": "decoder.leave"}
    for part, first in (("encoder", halvings), ("decoder", 1)):
        for block in range(depth):
            for n in range(3):
                ours = f"{part}.residual.{block}.convolutions.{n}"
                names[f"{part}.{first + block}.net.{2 * n}"] = ours
    return {names[name.rpartition(".")[0]] + "." + name.rpartition(".")[2]: tensor
            for name, tensor in state.items()}  # fmt: skip


@pytest.mark.parametrize("residual", [0, 2])
def test_discrete_vae(residual: int) -> None:
    torch.manual_seed(4)
    theirs = DiscreteVAE(20, 6, 8, halvings=3, residual=residual).eval()
    name = f"dVAE(codes=20,code_width=6,width=8,depth={residual})/8"
    model = vitlab.create(name, image_size=24).eval()
    assert isinstance(model, Tokenizer)
    model.load_state_dict(renamed(theirs.state_dict(), 3, residual))
    images = pixels() * 2 - 1
    with torch.no_grad():
        scores = theirs.encoder(images)
        torch.testing.assert_close(model.logits(images), scores, atol=1e-5, rtol=0)
        decoded = theirs.decode(scores.argmax(1))
        torch.testing.assert_close(model.decode(model.codes(images)), decoded, atol=1e-5, rtol=0)
