"""docs/one-page.md: a ViT, released weights, a fitted head, fine-tuning; equal to the package."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import vitlab
from docs.pages import ROOT, blocks
from oracles.peers import transformers

NATIVE, SIZE, CLASSES = 84, 56, 3


@pytest.fixture(scope="module")
def page() -> Any:
    """What the page defines."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(ROOT / "docs" / "one-page.md", "python"):
        exec(block.text, names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small DINOv2 as transformers saves it, of 84 pixels, none of its weights zero or one."""
    library, folder = transformers(), tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = library.Dinov2Config(
        hidden_size=128, num_hidden_layers=3, num_attention_heads=2, image_size=NATIVE
    )
    model = library.Dinov2Model(config)
    for weight in model.parameters():
        nn.init.normal_(weight, weight.mean().item(), 0.05)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise of three colors, in folders of classes."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for label, name in enumerate("abc"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (60 + 5 * label, 90, 3)) // 2
                pixels[..., label] += 60
                file = folder / part / name / f"{number}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder


@pytest.mark.parametrize("size", [SIZE, NATIVE, 112])
def test_tokens_have_the_bits_of_the_package(page: Any, weights: Path, size: int) -> None:
    images = torch.randn(2, 3, size, size)
    own, theirs = page.dinov2(weights, size).eval(), vitlab.load(weights, image_size=size).eval()
    with torch.no_grad():
        assert torch.equal(own.encode(images), theirs.encode(images))


def test_photographs_are_read_as_by_the_package(page: Any, weights: Path, photos: Path) -> None:
    files = sorted(photos.glob("test/*/0.png"))
    own = torch.stack([page.read(file, SIZE) for file in files])
    theirs = vitlab.preprocess(vitlab.load(weights, image_size=SIZE))(files)
    assert (own - theirs).abs().max() < 0.03  # 1.5 of 255 levels: both round to whole ones


def test_the_classifier_is_scikit_learns(page: Any) -> None:
    from sklearn.linear_model import LogisticRegression

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 20, generator=draw) * 3 + 1, torch.arange(60) % CLASSES
    x[:, :CLASSES] += F.one_hot(y, CLASSES)
    head = page.fitted(x, y, CLASSES)
    z = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    found = LogisticRegression(C=1 / (1e-3 * len(y)), tol=1e-10, max_iter=10_000).fit(z, y)
    wanted = found.predict_log_proba(z)
    assert np.abs(head(x).log_softmax(1).detach().numpy() - wanted).max() < 1e-3


def test_fine_tuned_weights_have_the_bits_of_the_package(page: Any, weights: Path) -> None:
    images, labels = torch.randn(20, 3, NATIVE, NATIVE), torch.arange(20) % CLASSES
    own = page.dinov2(weights, NATIVE)  # at another size the package keeps all its positions
    own.head = page.fitted(page.features(own, images), labels, CLASSES)
    theirs = _Theirs(vitlab.load(weights, image_size=NATIVE, classes=CLASSES), own)
    theirs.head.load_state_dict(own.head.state_dict())
    for model in (own, theirs):
        page.finetuned(model, images, labels, epochs=2, batch=8)
    for (name, weight), other in zip(own.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(weight, other), name


class _Theirs(nn.Module):
    """A model of the package, its parts under the names of the page and in their order."""

    def __init__(self, model: vitlab.VisionTransformer, own: nn.Module) -> None:
        super().__init__()
        self.token, self.positions = model.token, model.positions[0].table
        self.embed, self.blocks, self.norm = model.stem, model.blocks, model.norm
        self.head = model.head.classify
        self.names = [_theirs(name) for name, _ in own.named_parameters()]
        self.model = [model]  # its parameters are here already

    def parameters(self, recurse: bool = True) -> Any:
        return map(self.model[0].get_parameter, self.names)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # in training the package computes the class token alone in the last block: other sums
        return self.head(self.model[0].encode(images)[:, 0])


def _theirs(name: str) -> str:
    """The package's name of a parameter of the page."""
    parts = {
        "positions": "positions.0.table", "embed": "stem.layers.0", "head": "head.classify",
        "norm1": "attention.0.norm", "qkv": "attention.0.body.qkv", "scale1": "attention.0.scale",
        "project": "attention.0.body.project", "norm2": "mlp.0.norm", "scale2": "mlp.0.scale",
        "expand": "mlp.0.body.expand", "contract": "mlp.0.body.contract",
    }  # fmt: skip
    return ".".join(parts.get(each, each) for each in name.split("."))


def test_the_page_runs_as_a_program(
    page: Any, weights: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.main(str(weights), str(photos), SIZE)
    fitted, tuned = capsys.readouterr().out.splitlines()
    assert fitted.endswith("of 12 photographs")
    assert tuned.startswith(("fine-tuned 1", "fine-tuned 9"))
