"""All figures of a model: the sample, damaged images, and what must not change them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import vitlab
from vitlab.data.decode.stored import StoredImage
from vitlab.data.images import Images
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.data.sources.memory import Arrays
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation import compute
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.inductive_bias import balanced, probed_images
from vitlab.evaluation.infer import predict
from vitlab.models.model import Model

CPU = torch.device("cpu")
NAMES = {
    "clean", "shuffled_2", "shuffled_4", "shuffled_8", "cue_shape", "cue_texture", "shape_bias",
    "images", "damaged", *(f"{way}_{n}" for way in ("shift", "consistency") for n in (1, 2, 3, 4)),
    *(f"{way}_{n}" for way in ("low_pass", "high_pass", "occluded", "occluded_salient",
                               "occluded_nonsalient") for n in (25, 50, 75)),
}  # fmt: skip


@dataclass(frozen=True)
class Torn(Arrays):
    """A store whose every third image is damaged."""

    def image(self, index: int) -> StoredImage:
        if index % 3 == 0:
            raise ImageError(f"{self.name(index)} is damaged")
        return super().image(index)


def torn(whole: Images) -> Images:
    return replace(whole, store=Torn(whole.store.images))


def model_of(classes: int = 10, **choices: int) -> Model:
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/2", classes=classes, image_size=8, channels=1,
        generator=generator, **choices,
    )  # fmt: skip
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def random_images(count: int, classes: int = 4, seed: int = 0) -> Images:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 8, 8, 1), np.uint8)
    labels = SingleLabels(generator.integers(0, classes, count))
    return Images.of(Arrays(pixels), labels, tuple("abcdefghij"[:classes]))


def test_as_many_of_each_class_as_there_are() -> None:
    labels = np.repeat([0, 3, 7], [50, 5, 20])
    chosen = balanced(labels, 24, np.random.default_rng(0))
    assert np.bincount(labels[chosen])[[0, 3, 7]].tolist() in ([10, 5, 9], [9, 5, 10])
    assert (np.diff(chosen) > 0).all()
    assert balanced(labels, 99, np.random.default_rng(0)).tolist() == [*range(75)]
    drawn = np.concatenate([balanced(labels, 9, np.random.default_rng(n)) for n in range(1500)])
    shares = np.bincount(drawn, minlength=75) / 1500
    wanted = np.repeat([3 / 50, 3 / 5, 3 / 20], [50, 5, 20])
    assert shares == pytest.approx(wanted, abs=0.06)


def test_every_figure_of_the_digits_and_a_model_left_as_it_was() -> None:
    model = model_of().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = vitlab.inductive_bias(model, "digits", images=40, device="cpu")
    assert seen.keys() == NAMES
    assert (seen["images"], seen["damaged"]) == (40, 0)
    assert all(type(value) is float and 0 <= value <= 40 for value in seen.values())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    opened = vitlab.inductive_bias(model, open_to_learn("digits").test, images=40, device="cpu")
    assert opened == seen


def test_batches_change_nothing_and_the_seed_everything_random() -> None:
    model, source = model_of(4), random_images(64)
    first, again, other = (
        vitlab.inductive_bias(model, source, batch=batch, seed=seed, device="cpu")
        for batch, seed in ((64, 0), (7, 0), (64, 1))
    )
    assert first == again
    for name in ("clean", "occluded_salient_50", "low_pass_50", "high_pass_25"):
        assert first[name] == other[name], "all images are in the sample"
    changed = {name for name in NAMES if first[name] != other[name]}
    assert {"shuffled_4", "consistency_2"} <= changed
    assert changed & {"occluded_25", "occluded_50", "occluded_75"}
    assert changed & {"cue_shape", "cue_texture"}


def test_damaged_images_are_left_out_and_counted() -> None:
    model, whole = model_of(4), random_images(30)
    seen = vitlab.inductive_bias(model, torn(whole), device="cpu")
    assert (seen["images"], seen["damaged"]) == (20, 10)
    sound = np.arange(30) % 3 > 0
    rest = whole.take(np.flatnonzero(sound))
    without = vitlab.inductive_bias(model, rest, device="cpu")
    assert without | {"damaged": 10} == seen
    one = whole.take([0])
    with pytest.raises(DataError, match="image 0 is damaged"):
        vitlab.inductive_bias(model, torn(one), device="cpu")


def test_the_fast_form_gives_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = model_of(4), random_images(40)
    seen = vitlab.inductive_bias(model, source, device="cpu")
    done = predict(model, source, Compute(CPU, workers=0))
    accuracy = (done.probabilities.argmax(1) == done.labels.batch()).mean()
    assert seen["clean"] == pytest.approx(accuracy)
    monkeypatch.setattr(compute, "PACKING", 0)
    how = {"batch": 16, "generator": np.random.default_rng(0), "compute": Compute(CPU)}
    with torch.no_grad():
        fast = probed_images(model.eval(), source, 40, **how)  # type: ignore[arg-type]
    assert fast.form.model is not model
    assert vitlab.inductive_bias(model, source, device="cpu") == pytest.approx(seen)


def test_bf16_is_close() -> None:
    model, source = model_of(4), random_images(60)
    exact, half = (
        vitlab.inductive_bias(model, source, precision=precision, device="cpu")
        for precision in ("fp32", "bf16")
    )
    assert half["clean"] == pytest.approx(exact["clean"], abs=0.1)
    assert half.keys() == exact.keys()
    kinds = set()
    model.register_forward_hook(lambda module, given, scores: kinds.add(scores.dtype))
    vitlab.inductive_bias(model, source, precision="bf16", device="cpu")
    assert kinds == {torch.bfloat16}, "gradients too"


def refused(model: Model, source: Images, **options: int) -> str:
    with pytest.raises((DataError, OptionError)) as caught:
        vitlab.inductive_bias(model, source, device="cpu", **options)
    return str(caught.value)


def test_what_cannot_be_probed_is_refused_in_one_line() -> None:
    source = random_images(8)
    assert "at least 1" in refused(model_of(4), source, images=0)
    assert "4 classes, but the model has 5" in refused(model_of(5), source)
    assert "no classifier" in refused(model_of(0), source)
    table = np.eye(4, dtype=np.uint8)[np.arange(8) % 4]
    several = source.with_target(MultiLabels.of_table(table), source.classes)
    assert "several labels" in refused(model_of(4), several)
    fast = vitlab.accelerate(model_of(4), device="cpu", precision="fp32", engine="packed")
    assert "gives no gradients" in refused(fast, source)
    native = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=4, image_size=8, channels=1,
        fit="native", tokens=4, positions="2d",
    )  # fmt: skip
    assert "fit=native" in refused(native, source)
    alone = source.with_target(SingleLabels(np.zeros(8, np.int64)), source.classes)
    assert "one class" in refused(model_of(4), alone)
    damaged = model_of(4)
    with torch.no_grad():
        next(damaged.parameters()).fill_(torch.nan)
    assert "gives 8 of 8 images a logit that is not a number" in refused(damaged, source)
