"""What the sections of a report say and show."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_facts import cells, some
from vitlab.evaluation.per_class import ClassFigures
from vitlab.evaluation.reliability import Bin
from vitlab.report import headline, matrix
from vitlab.report.drawings.charts import reliability, spread
from vitlab.report.drawings.curves import curves
from vitlab.report.drawings.theme import LEVELS
from vitlab.report.facts import Facts, Judged, Picture, Point
from vitlab.report.page import write
from vitlab.report.trust import trust

PHONE = 390 - 2 * 16 - 2 * 13.6 - 2  # pixels left by the margins of page and box


def page(tmp_path: Path, facts: Facts) -> str:
    return write(tmp_path / "report.html", facts).read_text(encoding="utf-8")


def plain(text: str) -> str:
    """The words of a piece of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}"')[1].split("</section>")[0]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: relative luminance and contrast ratio."""

    def luminance(color: str) -> float:
        digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        value = np.array([int(digits[place : place + 2], 16) for place in (0, 2, 4)]) / 255
        linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_everything_that_is_read_stands_out(tmp_path: Path) -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    text = page(tmp_path, some())
    style = text.split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    for part in (light, dark.split("* { box-sizing")[0]):
        theme = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part))
        for word in ("ink", "muted", "blue", "warm"):
            for ground in ("page", "card"):
                assert contrast(theme[word], theme[ground]) >= 4.5, (word, ground)
        cells = re.findall(r"\.([rw]\d+)\{background:(#\w+);color:(#\w+)\}", part)
        assert {name for name, *_ in cells} == {
            f"{letter}{n}" for letter in "rw" for n in range(1, LEVELS + 1)
        }
        for name, ground, figure in cells:
            assert contrast(ground, figure) >= 4.5, name
        assert len({ground for _, ground, _ in cells}) == 2 * LEVELS
    used = set(re.findall(r'<td class="([rw]\d+)"', text))
    assert len(used) >= 5
    assert used <= {name for name, *_ in cells}


def test_a_cell_leads_to_the_pictures_of_its_confusion(tmp_path: Path) -> None:
    facts, pixels = some(3), np.zeros((8, 8), np.uint8)
    pairs = [(1, 0), (1, 0), (2, 1)]
    mistakes = [
        Judged(
            Picture(pixels, f"{n}.png"), f"{n}.png", f"class {t}", f"class {g}", 0.9, 0.1, (t, g)
        )
        for n, (t, g) in enumerate(pairs)
    ]
    table = cells([[5, 0, 1], [2, 5, 0], [0, 1, 5]])
    text = page(tmp_path, replace(facts, mistakes=mistakes, confusion=table))
    links = re.findall(r'<td class="w\d+"[^>]*><a href="#([^"]+)"[^>]*>(\d+)</a>', text)
    assert links == [("m-1-0", "2"), ("m-2-1", "1")]  # of 0 for 2 there is no picture
    groups = section(text, "mistakes").split('<li class="group')[1:]
    assert ['id="m-1-0"' in each for each in groups] == [True, False]
    assert groups[0].count("<figure>") == 2
    assert "truth 10.0%" in plain(groups[1])
    assert "prediction 90.0%" in plain(groups[1])
    copied = section(text, "mistakes").split('<pre class="list"')[1]
    assert copied.count(facts.listed[0].name) == len(facts.listed)


def top(tmp_path: Path, facts: Facts) -> str:
    return plain(page(tmp_path, facts).split("<body>")[1].split("<nav")[0])


def test_above_all_stand_the_figures_and_how_they_were_made(tmp_path: Path) -> None:
    facts = some()
    figures = {
        "accuracy": 0.75, "majority": 0.31, "macro_f1": 0.66, "balanced_accuracy": 0.64,
        "images": 300, "device": "cpu, 2 threads", "seconds": 62.4,
        "intervals": {"accuracy": [0.7, 0.79], "macro_f1": [0.6, 0.7]},
    }  # fmt: skip
    text = top(tmp_path, replace(facts, figures=figures))
    for words in (
        "ViT-Ti/2 on digits", "75.0% of 300 test images correct.", "70.0 to 79.0", "Majority rate",
        "31.0%", "always answering class 9", "Macro F1 66.0%", "Balanced accuracy 64.0%",
        "some/digits", "196 training, 20 test", "4 March 2026, 05:06 UTC", "Seed 17",
        "cpu, 2 threads", "39 steps", "1 min 2 s", "vitlab train digits --out", "abcdef012345",
        "torch 2.13.0",
    ):  # fmt: skip
        assert words in text, words
    assert "guessing" not in text
    long = replace(facts, model="ViT(width=32,depth=2,heads=2,mlp=64)/2")
    assert headline.title(long) == "ViT on digits"
    assert ("Model", long.model) in headline.about(long)


def test_intervals_are_in_the_unit_of_their_figure() -> None:
    ranges = {"mcc": [0.6461, 0.7], "nll": [1.5, 1.75], "auroc": [0.9, 0.95]}
    figures = {"mcc": 0.6789, "nll": 1.6, "auroc": 0.93, "intervals": ranges}
    facts = replace(some(), figures=figures)
    found = [*headline.key_cards(facts), *headline.more_cards(facts)]
    assert {each.label: each.range for each in found} == {
        "MCC": "0.646 to 0.700", "NLL": "1.5000 to 1.7500", "AUROC": "90.0 to 95.0",
    }  # fmt: skip


def test_a_model_at_chance_is_called_so(tmp_path: Path) -> None:
    facts = some()
    for accuracy, interval, words in (
        (
            0.33,
            [0.2, 0.5],
            "That cannot be told from guessing: the most frequent class alone gives",
        ),
        (0.1, [0.05, 0.2], "That is worse than guessing"),
    ):
        ranges = {"intervals": {"accuracy": interval}}
        figures = {"accuracy": accuracy, "images": 27, "majority": 1 / 3} | ranges
        guessed = replace(facts, figures=figures)
        assert words in headline.lead(guessed)
    assert "its maps mean little" in section(page(tmp_path, guessed), "attention")
    better = replace(facts, figures={"accuracy": 0.9, "images": 27, "majority": 0.1})
    assert "mean little" not in page(tmp_path, better)
    assert headline.lead(better) == "90.0% of 27 test images correct."
    several = replace(facts, figures={
        "map": 0.25, "images": 100, "micro_f1": 0.4, "macro_f1": 0.3,
        "intervals": {"map": [0.2, 0.3]},
    }, per_class=[ClassFigures("a", 0.5, 0.5, 0.5, 20), ClassFigures("b", 0.5, 0.5, 0.5, 40)],
        predicted=[3, 0], classes=("a", "b"), confusion=cells([[0, 0], [0, 0]]), survey=None,
    )  # fmt: skip
    assert headline.lead(several) == (
        "Mean average precision 25.0% on 100 test images. That cannot be told from guessing: a "
        "random order gives 30.0%."
    )


def test_losses_that_are_other_quantities_have_axes_of_their_own(tmp_path: Path) -> None:
    facts = some()
    for tables, several, words in (
        ({}, False, ""),
        ({"objective": {"label_smoothing": 0.1}}, False, "label smoothing (0.1)"),
        ({"augment": {"mixup": 0.2, "cutmix": 1.0}}, False, "Mixup, CutMix"),
        ({"objective": {"loss": "bce"}}, False, "a sigmoid per class"),
        ({"objective": {"loss": "bce"}}, True, ""),
        ({"objective": {"loss": "sigmoid"}}, True, "a sum over the classes"),
        ({"objective": {"balance": "weights"}}, False, "weights of the classes"),
        ({"code": {"loss": "mine"}}, False, "a loss function of its own"),
    ):
        figures = facts.figures | ({"map": 0.5} if several else {})
        made = replace(facts, recipe=facts.recipe | tables, figures=figures)
        assert ", ".join(headline.apart(made)) == words
    for tables in ({}, {"objective": {"label_smoothing": 0.1}}):
        shown = section(page(tmp_path, replace(facts, recipe=tables)), "curves")
        assert ("label smoothing (0.1), the test loss does not" in shown) == bool(tables)
        assert ('id="loss-axes_2"' in shown) == bool(tables)


def ticks(drawing: str) -> list[str]:
    """The labels of a drawing."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


def test_curves_name_their_last_and_their_best_value() -> None:
    training = [Point(i, i / 4, 3 - i / 40, i / 100, 1e-3) for i in range(80)]
    testing = [
        Point(4, 1.0, 2.0, 0.5), Point(40, 10.0, 1.23456, 0.81), Point(79, 19.75, 1.5, 0.789),
    ]  # fmt: skip
    loss, accuracy, rate = curves(training, testing, "validation", alike=True)
    assert [each.title for each in (loss, accuracy, rate)] == ["Loss", "Accuracy", "Learning rate"]
    assert "1.5" in ticks(loss.drawing)
    assert "78.9%" in ticks(accuracy.drawing)
    assert loss.keys == (("blue", "training"), ("warm", "validation, best 1.23"))
    assert accuracy.keys == (("blue", "training"), ("warm", "validation, best 81.0%"))
    epochs = [label for label in ticks(rate.drawing) if "." not in label]
    assert {"0", "5", "10", "15", "epoch"} <= set(epochs)  # whole epochs
    faint = loss.drawing.count("stroke-opacity: 0.3")
    assert faint == 1  # the original below its average
    assert curves(training[:9], (), alike=True)[0].drawing.count("stroke-opacity: 0.3") == 0
    short = curves([Point(i, i / 9, 1.0, 0.5, 1e-3) for i in range(9)], (), alike=True)[0]
    assert "step" in ticks(short.drawing)
    last_is_best = curves((), testing[:2], alike=True)[1]
    assert last_is_best.keys == (("warm", "test"),)


def test_what_is_learned_of_a_teacher_has_curves() -> None:
    points = [Point(i, i / 10, 1.0, 0.5, own={"agreed": i / 20, "accuracy": 0.5}) for i in range(9)]
    found = {each.title: str(each.drawing) for each in curves(points, [], alike=True)}
    assert list(found) == ["Loss", "Accuracy", "Agreement with the teacher"]
    assert "training, ends at 40.0%." in found["Agreement with the teacher"]


def test_text_in_drawings_is_readable_on_a_phone(tmp_path: Path) -> None:
    for facts in (some(), some(60)):
        text = page(tmp_path, facts)
        drawings = re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)
        assert len(drawings) >= 4
        for drawing in drawings:
            width = float(re.findall(r'viewBox="0 0 (\d+) ', drawing)[0])
            sizes = [float(size) for size in re.findall(r"font(?:-size)?: (\d+)px", drawing)]
            assert sizes
            assert min(sizes) * min(1, PHONE / width) >= 11
    sizes = [
        float(size) for size in re.findall(r"font-size: (\.\d+)rem", text.split("</style>")[0])
    ]
    assert min(sizes) * 16 >= 11


def test_bins_of_few_images_are_faint_and_the_reason_of_a_high_ece_is_given(tmp_path: Path) -> None:
    under = [Bin(0.4, 0.5, 300, 0.45, 0.9), Bin(0.5, 0.6, 3, 0.55, 1.0)]
    drawing = reliability(under, "40%")
    assert "opacity: 0.35" in drawing
    assert "opacity: 0.35" not in reliability(under[:1], "40%")
    assert {"300", "3", "0%", "100%"} <= set(ticks(drawing))
    assert "0" not in ticks(drawing)  # it would stand where 0% does
    assert "0" not in ticks(spread([0.1, 0.5, 0.5]))
    smooth = {"objective": {"label_smoothing": 0.1}, "augment": {"mixup": 0.2}}
    facts = replace(some(), reliability=under, figures={"ece": 0.45}, recipe=smooth)
    words = "trained with label smoothing (0.1) and Mixup, which keeps confidence below accuracy"
    assert words in trust(facts).verdict
    over = [Bin(0.9, 1.0, 300, 0.95, 0.4)]
    assert "keeps confidence" not in trust(replace(facts, reliability=over)).verdict
    assert "keeps confidence" not in trust(replace(facts, recipe={})).verdict


def test_the_data_is_shown(tmp_path: Path) -> None:
    text = section(page(tmp_path, some()), "data")
    assert "196 training, 20 test images of 10 classes" in plain(text)
    assert "from 20x30 to 400x300, median 40x30" in text
    assert text.count("<img") == 30
    rows = re.findall(r'class="stack" aria-hidden="true">(.*?)</span></td>', text)
    widths = [[float(width) for width in re.findall(r"width:([\d.]+)%", row)] for row in rows]
    assert widths[0] == pytest.approx([100 * 10 / 32, 100 * 2 / 32], abs=0.1)
    assert max(sum(row) for row in widths) == pytest.approx(100, abs=0.2)
    many = section(page(tmp_path, some(1000, 3000)), "data")
    assert many.count("<img") == 12
    assert "from 10 (class 0) to 30 (class 999)" in plain(many).replace("( ", "(").replace(
        " )", ")"
    )


def test_classes_can_be_put_in_three_orders(tmp_path: Path) -> None:
    facts = some()
    text = section(page(tmp_path, replace(facts, predicted=[0, *facts.predicted[1:]])), "classes")
    rows = re.findall(r'--f:(\d+);--c:(\d+);--i:(\d+)"><th[^>]*><bdi>class (\d+)', text)
    places = np.array(rows, dtype=int)
    f1 = [each.f1 or 0.0 for each in facts.per_class]
    images = [each.images for each in facts.per_class]
    names = places[:, 3]
    assert [f1[n] for n in names[np.argsort(places[:, 0])]] == sorted(f1)
    assert names[np.argsort(places[:, 1])].tolist() == list(range(10))
    assert [images[n] for n in names[np.argsort(places[:, 2])]] == sorted(images, reverse=True)
    assert f"Never predicted: class 0 ({images[0]} test images)." in plain(text).replace("  ", " ")
    assert matrix.never_predicted(facts) == []


def test_changed_options_are_noted(tmp_path: Path) -> None:
    facts = some()
    changes = [{"step": 1200, "option": "lr", "before": 0.001, "after": 0.0003}, {
        "step": 1300, "option": "clip", "after": 1.0,
    }]  # fmt: skip
    made = replace(facts, recipe=facts.recipe | {"changes": changes})  # type: ignore[arg-type]
    text = page(tmp_path, made)
    notes = plain(section(text, "notes"))
    assert "from step 1,200 on, lr is 0.0003 (before: 0.001)" in notes
    assert "from step 1,300 on, clip is 1 (before: –)" in notes
    assert "changes" not in section(text, "recipe")


def test_pictures_are_small(tmp_path: Path) -> None:
    """Many photographs and mistakes make a page of less than a megabyte."""
    facts, generator = some(), np.random.default_rng(0)
    rows, columns = np.mgrid[0:224, 0:224]
    waves = [127 + 90 * np.sin(rows / (7 + c) + columns / 11) for c in range(3)]
    pixels = np.stack(waves, -1) + generator.normal(0, 8, (224, 224, 3))
    photo = Picture(pixels.clip(0, 255).astype(np.uint8), "photo.jpg")
    judged = replace(facts.mistakes[0], picture=photo)
    assert facts.survey
    samples = {number: [photo] * 6 for number in range(10)}
    made = replace(
        facts, mistakes=[judged] * 72, survey=replace(facts.survey, samples=samples),
        examples=[replace(judged, attention=generator.random((14, 14), np.float32))] * 6,
    )  # fmt: skip
    text = page(tmp_path, made)
    assert 200_000 < len(text) < 1_000_000
    shown = [
        base64.b64decode(found) for found in re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    ]
    sides = {Image.open(io.BytesIO(each)).size for each in shown}
    assert sides == {(160, 160), (72, 72)}
    tiny = page(tmp_path, some(channels=1))
    kept = re.findall(r"data:image/png;base64,([^\"]+)", section(tiny, "mistakes"))
    assert Image.open(io.BytesIO(base64.b64decode(kept[0]))).size == (8, 8)


def test_the_matrix_of_many_classes_is_one_small_picture(tmp_path: Path) -> None:
    for count, side in ((60, 60), (1000, 500)):
        facts = some(count, 3000)
        text = section(page(tmp_path, facts), "confusion")
        data = base64.b64decode(re.findall(r"data:image/png;base64,([^\"]+)", text)[0])
        image = Image.open(io.BytesIO(data))
        assert image.size == (side, side)
        assert len(data) < 60_000
        levels = np.asarray(image)
        step = count // side
        blocks = facts.confusion.dense().reshape(side, step, side, step).sum((1, 3))
        assert ((levels > 0) == (blocks > 0)).all()
