"""Everything that is looked at: the same numbers as the functions, image by image."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import photo
from vitlab import inspect
from vitlab.data.images import Images
from vitlab.data.open import open_images
from vitlab.errors import OptionError
from vitlab.report.inside import looking
from vitlab.report.inside.looking import look

CPU = torch.device("cpu")
NAMES = ("cat", "dog", "owl")


def opened(files: list[str]) -> Images:
    return open_images(files, "none").every()


def tiny(name: str = "ViT(width=24,depth=2,heads=3,mlp=32)/8", size: int = 32, **more: Any) -> Any:
    torch.manual_seed(0)
    return vitlab.create(name, 3, size, zero_head=False, labels=NAMES, **more)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    for number in range(5):
        photo(number, 40 + 8 * (number % 2), 40, number).save(folder / f"{number:02}.png")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


def test_figures_are_those_of_all_images_at_once(
    model: Any, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "SHOWN", 4)
    taken: list[int] = []
    found = look(model, opened(files), CPU, progress=taken.append)
    assert taken == list(range(1, 6))
    images = vitlab.preprocess(model)(files)
    near = {"abs": 1e-5, "rel": 1e-4}
    assert found.count == 5
    for key, want in (
        ("attention_distance", inspect.attention_distance(model, images)),
        ("attention_entropy", inspect.attention_entropy(model, images)),
        ("token_norms", inspect.token_norms(model, images)[:, :, 1:].mean((0, 2))),
        ("longest_tokens", inspect.token_norms(model, images)[:, :, 1:].amax((0, 2))),
        ("token_similarity", inspect.token_similarity(model, images).mean(0)),
    ):
        assert found.arrays[key] == pytest.approx(want.numpy(), **near)
    assert len(found.images) == 4
    colors = inspect.feature_colors(model, images[:4])
    for number, each in enumerate(found.images):
        one = images[number : number + 1]
        best = model(one).argmax(-1)
        assert each.name == files[number]
        assert each.watched == NAMES[int(best)]
        assert each.maps["relevance"] == pytest.approx(
            inspect.relevance(model, one, best)[0].numpy(), **near
        )
        assert each.heads == pytest.approx(inspect.class_attention(model, one)[0].numpy(), **near)
        assert each.colors == pytest.approx(colors[number].numpy(), abs=1e-3)
        assert each.patch == divmod(int(each.maps["relevance"].argmax()), 4)
        assert each.maps["similar_patches"][each.patch] == pytest.approx(1, abs=1e-5)
    assert found.remarks == []


def test_one_layer_can_be_chosen(model: Any, files: list[str]) -> None:
    found = look(model, opened(files[:1]), CPU, layer=1, watch="dog")
    (one,), image = found.images, vitlab.preprocess(model)(files[:1])
    heads = inspect.class_attention(model, image, 1)[0].numpy()
    assert one.heads == pytest.approx(heads, abs=1e-6)
    norms = inspect.norm_map(model, image, layer=1)[0].numpy()
    assert one.maps["norm_map"] == pytest.approx(norms, rel=1e-5)
    assert one.watched == "dog"
    assert found.remarks == []
    with pytest.raises(OptionError, match="layer must be from 1 to 2, not 3"):
        look(model, opened(files[:1]), CPU, layer=3)


KINDS = {
    "ResNet": ("BiT-R(1-1)x1", {}, "rollout", {"gradcam", "norm_map", "similar_patches"}),
    "pool": (None, {"pool": "attention"}, "", {"rollout", "relevance", "gradcam"}),
    "mean": (None, {"pool": "mean"}, "heads", {"rollout", "relevance", "gradcam"}),
    "axial": (None, {"attention": "axial", "pool": "mean"}, "heads", {"rollout"}),
    "hybrid": ("R(1-1)+ViT(width=24,depth=2,heads=3,mlp=32)/8", {}, "", {"rollout", "gradcam"}),
    "relative": (None, {"positions": "relative"}, "positions", {"rollout"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_meaning_is_said_once_and_the_rest_goes_on(kind: str, files: list[str]) -> None:
    name, choices, missing, made = KINDS[kind]
    model = tiny(name, **choices) if name else tiny(**choices)
    found = look(model, opened(files[:2]), CPU)
    said = [name for names in found.missing.values() for name in names]
    assert len(said) == len(set(said))
    assert not missing or missing in said
    for each in found.images:
        assert made <= {*each.maps}
        assert each.colors is not None
    assert "embedding_filters" in found.arrays


def test_a_model_without_classes_shows_its_tokens(files: list[str]) -> None:
    queries = tiny(pool="attention", queries=2)  # which predict by their mean
    (image,) = look(queries, opened(files[:1]), CPU).images
    with torch.inference_mode():
        chances = queries(vitlab.preprocess(queries)(files[0]))[0].softmax(-1).mean(0)
    likely = pytest.approx(chances.max().item(), abs=1e-6)
    assert image.top[0] == (NAMES[int(chances.argmax())], likely)
    model = vitlab.create("ViT(width=24,depth=2,heads=3,mlp=32)/8", 0, 32)
    found = look(model, opened(files[:1]), CPU)
    assert {"late_attention", "rollout", "norm_map", "similar_patches"} == {*found.images[0].maps}
    assert found.images[0].top == ()
    assert any("relevance, Grad-CAM: " in each for each in found.remarks)


def test_images_of_several_sizes_share_their_colors(files: list[str], tmp_path: Path) -> None:
    model = tiny(fit="native", tokens=16)
    photo(0, 20, 80).save(tmp_path / "wide.png")
    source = opened([*files[:2], str(tmp_path / "wide.png")])
    found = look(model, source, CPU)
    shapes = {each.colors.shape for each in found.images if each.colors is not None}
    assert len(shapes) == 2
    assert "attention_distance" in found.arrays


def test_a_report_glances_at_a_few_images(model: Any, files: list[str]) -> None:
    found = look(model, opened(files), CPU, glance=True)
    images = vitlab.preprocess(model)(files)
    assert found.count == 5
    assert found.arrays["attention_distance"] == pytest.approx(
        inspect.attention_distance(model, images).numpy(), abs=1e-5
    )
    assert [each.name for each in found.images] == files[:4]
    assert all({*each.maps} == {"late_attention", "norm_map"} for each in found.images)


def test_what_some_images_cannot_have_is_no_mean_of_the_others(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(fit="native", tokens=16)
    photo(0, 20, 60).save(tmp_path / "wide.png")
    photo(0, 40, 40).save(tmp_path / "even.png")
    source = opened([str(tmp_path / "wide.png"), str(tmp_path / "even.png")])
    sizes = [look(model, opened([source.name(n)]), CPU) for n in (0, 1)]
    grids = [each.images[0].maps["norm_map"].size for each in sizes]
    assert grids[0] < grids[1]
    monkeypatch.setattr(looking, "MOST", 4 * 2 * 3 * (grids[0] + 1) ** 2)
    found = look(model, source, CPU)
    assert "attention_distance" not in found.arrays
    assert "token_norms" in found.arrays
    assert found.remarks[0].startswith(
        "attention distance, attention entropy, attention of the last layers, rollout, relevance, "
        "heads: the attention maps of "
    )
