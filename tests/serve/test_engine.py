"""The engine's answers: what the rest of the package says of the same image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from serve.made import TINY, Running, encoded, figure, nudged, tiny
from vitlab.errors import BusyError, OptionError, WeightsError
from vitlab.evaluation.unlike import fit_unlike
from vitlab.serve.answers import best_batch
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits
from vitlab.weights.identity import base_of

IMAGES = [encoded(n, kind) for n, kind in enumerate(("PNG", "JPEG", "WEBP", "PNG"))]


def check(running: Running, model: Any, name: str, images: list[bytes] = IMAGES) -> None:
    """Probabilities are those of `vitlab.classify`, features those of `model.features`."""
    for seen, answer in zip(
        running.answer(*images, model=name), vitlab.classify(model, images, top=99), strict=True
    ):
        classes = model.config.labels or [str(n) for n in range(model.config.classes)]
        found = dict(zip(classes, seen.probabilities, strict=True))
        assert found == pytest.approx(dict(answer.classes), abs=1e-6)
        assert seen.distance == pytest.approx(answer.distance, rel=1e-4, nan_ok=True)
    if model.config.fit != "native":
        rows = [seen.features for seen in running.answer(*images, model=name, what="features")]
        want = model.features(vitlab.preprocess(model)(images)).detach()
        np.testing.assert_allclose(rows, want, atol=1e-5)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "calibrated, labeled": (TINY, {"labels": tuple("abcde"), "crop": 0.8}),
    "squashed gray": (TINY, {"channels": 1, "fit": "squash", "mean": (0.1,)}),
    "native": (TINY, {"fit": "native", "tokens": 6, "positions": "rope"}),
    "ResNet": ("BiT-R(1-1)x1", {"size": 32}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_each_model_says_what_classify_says(running: Running, kind: str) -> None:
    name, choices = OTHERS[kind]
    model = tiny(name, **choices)
    model.provenance |= {"temperature": 1.7, "multi_label": "labels" in choices}
    running.engine.add("other", model)
    try:
        check(running, model, "other")
        card = running.engine.cards()[-1]
        assert (card.several, card.attention) == (
            "labels" in choices,
            "ViT" in name and kind != "native",
        )
        assert card.image_size == model.config.size
    finally:
        running.engine.remove("other")


def test_distances_are_those_of_each_model(running: Running) -> None:
    """A model of its own, a base, and deltas on its weights, in one batch; one does not know."""
    rng = np.random.default_rng(0)
    x, y, folds = rng.normal(size=(60, 16)), np.arange(60) % 5, np.arange(60) // 5 % 3
    base = tiny(seed=7)
    whole, changed, deep, other = (
        nudged(base, 8), nudged(base, 9, "classify"), nudged(base, 10, "qkv"),
        nudged(base, 11, "classify"),
    )  # fmt: skip
    for model, scale in ((base, 3), (whole, 1), (changed, 9), (deep, 2)):
        model.unlike = fit_unlike((scale * x).astype(np.float32), y, folds, 1)
    models = {"base": base, "whole": whole, "changed": changed, "deep": deep, "other": other}
    for name, model in models.items():
        own = name in ("base", "whole")
        running.engine.add(name, model if own else vitlab.delta(model, base))
    try:
        for name, model in models.items():
            check(running, model, name)
            known = np.isfinite(running.answer(IMAGES[0], model=name)[0].distance)
            assert known == (name != "other")
    finally:
        for name in reversed(models):
            running.engine.remove(name)


def test_the_first_model_is_the_usual_one(running: Running) -> None:
    check(running, tiny(), "")
    assert running.answer() == []
    (card,) = running.engine.cards()
    assert (card.name, card.model, card.features, card.trunk) == ("tiny", TINY, 16, "")
    assert card.bytes == sum(t.nbytes for t in tiny().state_dict().values())


def test_where_it_looked_is_the_attention_of_the_last_layers(running: Running) -> None:
    (seen,) = running.answer(IMAGES[0], what="attention")
    model = tiny()
    want = vitlab.inspect.late_attention(model, vitlab.preprocess(model)(IMAGES[0]))[0]
    np.testing.assert_allclose(seen.attention, want / want.max(), atol=1e-5)
    np.testing.assert_allclose(
        seen.probabilities, running.answer(IMAGES[0])[0].probabilities, atol=1e-6
    )
    # a square of a picture of 24 x 32, which is 16 x 21 when it is resized
    assert seen.box == pytest.approx((2 / 21, 0, 18 / 21, 1))


def test_the_box_is_that_of_the_upright_image(running: Running) -> None:
    exif = Image.Exif()
    exif[274] = 6  # stored on its side
    (seen,) = running.answer(encoded(1, "JPEG", exif=exif))
    assert seen.box == pytest.approx((0, 2 / 21, 1, 18 / 21))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "image 1: the file is empty"),
        (b"GIF89a" + bytes(99), "image 1: not a JPEG, PNG or WebP image"),
        (encoded(0, "TIFF"), "image 1: not a JPEG, PNG or WebP image"),
        (encoded(0, "BMP"), "image 1: not a JPEG, PNG or WebP image"),
        (encoded(0, "JPEG", 64, 64)[:-200], "image 1: damaged JPEG"),
        (encoded(0, rows=5001, columns=5000), "5000 x 5001 pixels exceed the limit of 25,000,000"),
    ],
)
def test_a_bad_image_does_not_spoil_the_others(running: Running, data: bytes, reason: str) -> None:
    good, bad = running.answer(IMAGES[0], data)
    assert good.error == ""
    assert good.probabilities is not None
    assert reason in bad.error
    assert bad.probabilities is None
    assert figure(running.engine, "decoder_restarts") == 0


def test_deltas_share_their_bases_weights_in_mixed_batches(
    running: Running, tmp_path: Path
) -> None:
    base = tiny(seed=3)
    vitlab.save(base, tmp_path / "base")
    base = vitlab.load(tmp_path / "base")
    tuned = {name: nudged(base, seed, "attention", "classify") for seed, name in enumerate("abc")}
    tuned["b"].provenance |= {"temperature": 2.0}
    engine = running.engine
    try:
        with pytest.raises(WeightsError, match=r"needs its base .* which is not served"):
            engine.add("a", vitlab.delta(tuned["a"], base))
        for name, model in tuned.items():
            engine.add(name, vitlab.delta(model, base).save(tmp_path / f"{name}.safetensors"))
        engine.add("alone", vitlab.delta(nudged(base, 9, "classify"), base))
        cards = {card.name: card for card in engine.cards()}
        assert len({cards[name].trunk for name in "abc"}) == 1
        assert cards["a"].bytes < 0.6 * sum(t.nbytes for t in base.state_dict().values())
        for name, model in tuned.items():
            check(running, model, name)
        (seen,) = running.answer(IMAGES[0], model="c", what="attention")
        want = vitlab.inspect.late_attention(tuned["c"], vitlab.preprocess(base)(IMAGES[0]))[0]
        np.testing.assert_allclose(seen.attention, want / want.max(), atol=1e-5)
    finally:
        for name in (*"abc", "alone"):
            if name in {card.name for card in engine.cards()}:
                engine.remove(name)


def test_a_base_that_is_served_lends_its_weights(running: Running) -> None:
    base = tiny()
    assert running.engine.cards()[0].trunk == ""
    running.engine.add("task", vitlab.delta(nudged(base, 5, "mlp"), base))
    first, task = running.engine.cards()
    assert (first.trunk, task.trunk) == ("", base_of(base).fingerprint[:12])
    check(running, base, "tiny")
    check(running, nudged(base, 5, "mlp"), "task")
    running.engine.remove("task")


def test_what_is_not_served_is_refused(running: Running, tmp_path: Path) -> None:
    engine = running.engine
    with pytest.raises(OptionError, match="unknown model 'tiney': did you mean tiny"):
        running.answer(IMAGES[0], model="tiney")
    with pytest.raises(BusyError, match="the queue is full"):
        running.answer(*IMAGES[:1] * 13)
    with pytest.raises(OptionError, match="there is a model 'tiny' already"):
        engine.add("tiny", tiny())
    with pytest.raises(OptionError, match="a model needs a name"):
        engine.add("", tiny())
    with pytest.raises(OptionError, match="unknown model 'x'"):
        engine.add("x", tiny(), replace=True)
    with pytest.raises(WeightsError, match="no such file or folder"):
        engine.add("x", tmp_path / "nothing")
    engine.add("body", tiny(classes=0))
    with pytest.raises(OptionError, match="it has no classifier; POST /features gives them"):
        running.answer(IMAGES[0], model="body")
    assert running.answer(IMAGES[0], model="body", what="features")[0].features.shape == (16,)
    engine.remove("body")
    assert len(engine.cards()) == 1


def test_four_cores_have_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, count in ((1, 1), (9, 2)):
        monkeypatch.setattr("vitlab.serve.engine.cores", lambda each=cores: each)
        assert Engine(device="cpu")._decoders.count == count
    assert Engine(device="cpu", limits=Limits(decoders=3))._decoders.count == 3


def test_the_batch_is_measured(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many images as take a second, and no more than are worth it."""
    served = running.engine.find("")
    for seconds, batch in ((0.01, 8), (0.3, 3), (1.1, 1)):
        monkeypatch.setattr("vitlab.serve.answers.try_blank", lambda served, each=seconds: each)
        assert best_batch(served) == (batch, seconds)
