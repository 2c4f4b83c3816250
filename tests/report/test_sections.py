"""What the sections of a report say and show."""

import base64
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from made_facts import cells, point, some
from report.reading import contrast
from vitlab.evaluation.per_class import ClassFigures, Confusion
from vitlab.evaluation.reliability import Bin
from vitlab.models.unlike import FOUND
from vitlab.report import headline
from vitlab.report.charts import SHADES
from vitlab.report.curves import learning_curves, other_losses
from vitlab.report.facts import Doubts, Judged, RunFacts
from vitlab.report.inside.looking import Looked, SeenImage
from vitlab.report.page import Plots, Prose, rendered
from vitlab.report.run_page import MANY, run_page, trust

PHONE = 390 - 2 * 16 - 2 * 13.6 - 2  # pixels left by the margins of page and box


def section(facts: RunFacts, *names: str) -> str:
    """The part of a report with these sections, and the notes."""
    page = run_page(facts)
    chosen = [each for each in page.sections if each.id in names]
    return rendered(replace(page, sections=chosen)).split("<main>")[1]


def plain(text: str) -> str:
    """The words of a piece of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_everything_that_is_read_stands_out() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    page = rendered(replace(run_page(some()), sections=[]))
    style = page.split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    for part in (light, dark.split("* { box-sizing")[0]):
        theme = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part))
        for word in ("ink", "muted", "blue", "warm"):
            for ground in ("page", "card"):
                assert contrast(theme[word], theme[ground]) >= 4.5, (word, ground)
    for shade in SHADES:  # white figures in cells of the confusion matrix
        assert contrast(shade, "#ffffff") >= 4.5
    assert min(float(size) for size in re.findall(r"font-size: (\.\d+)rem", style)) * 16 >= 11


def test_a_pair_leads_to_the_pictures_of_its_confusion() -> None:
    facts, pixels = some(3), np.zeros((8, 8), np.uint8)
    mistakes = [
        Judged(f"{n}.png", f"class {t}", f"class {g}", 0.9, 0.1, pixels, (t, g), unlike=n == 2)
        for n, (t, g) in enumerate([(1, 0), (2, 1), (1, 0)])
    ]
    table = cells([[5, 0, 1], [2, 5, 0], [0, 1, 5]])
    confused = [Confusion("class 1", "class 0", 2, 0.5), Confusion("class 0", "class 2", 1, 0.2)]
    made = replace(facts, mistakes=mistakes, confusion=table, confused=confused)
    links = re.findall(r'<a href="#([^"]+)">(\d+)</a>', section(made, "confusion"))
    assert links == [("m-1-0", "2")]
    shown = section(made, "mistakes").split('<li class="box"')[1:]
    assert [each.startswith(" id=") for each in shown] == [True, True, False]
    assert "90.0% sure; truth 10.0%" in plain(shown[0])
    assert ["unlike the training images" in each for each in shown] == [False, False, True]
    assert "--out answers.csv" in section(made, "more-mistakes")


def test_above_all_stand_the_figures_and_how_they_were_made() -> None:
    facts = some()
    figures = {
        "accuracy": 0.75, "majority": 0.31, "macro_f1": 0.66, "balanced_accuracy": 0.64,
        "images": 300, "device": "cpu, 2 threads", "seconds": 62.4,
        "intervals": {"accuracy": [0.7, 0.79], "macro_f1": [0.6, 0.7]},
    }  # fmt: skip
    made = replace(facts, figures=figures)
    page = run_page(made)
    assert page.title == "ViT-Ti/2 on digits"
    assert page.lead == "75.0% of 300 test images correct (95% interval 70.0 to 79.0%)."
    text = plain(section(made, "result", "figures", "made"))
    for words in (
        "By guessing 31.0% always answering class 9", "Balanced accuracy 64.0%", "60.0 to 70.0",
        "some/digits", "196 training, 20 test", "4 March 2026, 05:06 UTC", "Seed 17",
        "cpu, 2 threads", "39 steps", "1 min 2 s", "vitlab train digits --out", "abcdef012345",
        "torch 2.13.0",
    ):  # fmt: skip
        assert words in text, words
    assert "Unlike" not in text
    long = replace(facts, model="ViT(width=32,depth=2,heads=2,mlp=64)/2", unlike=(3, 1))
    assert run_page(long).title == "ViT on digits"
    (about,) = headline.measured_on(long)
    assert ("Model", long.model) in about.items
    unlike = "3 test images, 1 of them right: trust those answers less"
    (found,) = [text for name, text in about.items if name == "Unlike the training images"]
    assert found == f"{unlike}; {FOUND}"
    assert headline.unlike(replace(long, unlike=(0, 0))) == f"none of the test images; {FOUND}"


@pytest.mark.parametrize(
    ("recipe", "start", "item"),
    [
        ("vit-finetune", {"weights": "google/vit", "tune": "attention"},
         ("Fine-tuned from", "google/vit, tune=attention")),
        ("vit-finetune", {"weights": "a & b", "tune": "all"}, ("Fine-tuned from", "a & b")),
        ("probe", {"weights": "/home/me/b", "tune": "head"}, ("Head fitted on", "b")),
    ],
)  # fmt: skip
def test_a_fine_tuned_model_says_where_it_started(
    recipe: str, start: dict[str, str], item: tuple[str, str]
) -> None:
    tables = some().recipe | {"start": start, "recipe": {"recipe": recipe}}
    (about,) = headline.measured_on(replace(some(), recipe=tables))
    assert item in about.items


def test_intervals_are_in_the_unit_of_their_figure() -> None:
    ranges = {"mcc": [0.6461, 0.7], "nll": [1.5, 1.75], "auroc": [0.9, 0.95]}
    figures = {"mcc": 0.6789, "nll": 1.6, "auroc": 0.93, "macro_f1": 0.0, "intervals": ranges}
    table = headline.more_figures(replace(some(), figures=figures))
    assert {row[0]: row[2:] for row in table.rows} == {
        "MCC": ("0.679", "0.646 to 0.700"), "NLL": ("1.6000", "1.5000 to 1.7500"),
        "AUROC": ("93.0%", "90.0 to 95.0"), "Macro F1": ("0.0%", "–"),
    }  # fmt: skip


def test_without_a_figure_or_a_survey_less_is_said() -> None:
    unknown = replace(some(), figures={"accuracy": math.nan, "majority": 0.25}, survey=None)
    assert headline.lead(unknown) == ""
    cards = headline.head(unknown)
    assert cards.gauge is None
    assert "always answering the most frequent class" in {each.note for each in cards.items}


def test_a_model_at_chance_is_called_so() -> None:
    usual = "That cannot be told from guessing: always answering the most frequent class"
    for accuracy, interval, words in (
        (0.33, [0.2, 0.5], usual),
        (0.1, [0.05, 0.2], "That is worse than guessing"),
    ):
        ranges = {"intervals": {"accuracy": interval}}
        figures = {"accuracy": accuracy, "images": 27, "majority": 1 / 3} | ranges
        guessed = replace(some(), figures=figures, inside=Looked("m", count=8))
        assert words in headline.lead(guessed)
    assert "its maps mean little" in section(guessed, "inside")
    better = replace(guessed, figures={"accuracy": 0.9, "images": 27, "majority": 0.1})
    assert "mean little" not in section(better, "inside")
    assert headline.lead(better) == "90.0% of 27 test images correct."
    several = replace(some(), figures={
        "map": 0.25, "images": 100, "micro_f1": 0.4, "macro_f1": 0.3,
        "intervals": {"map": [0.2, 0.3]},
    }, per_class=[ClassFigures("a", 0.5, 0.5, 0.5, 20), ClassFigures("b", 0.5, 0.5, 0.5, 40)],
        predicted=[3, 0], classes=("a", "b"), confusion=cells([[0, 0], [0, 0]]), survey=None,
    )  # fmt: skip
    assert headline.lead(several) == (
        "Mean average precision 25.0% on 100 test images (95% interval 20.0 to 30.0%). That cannot "
        "be told from guessing: a random order gives 30.0%."
    )


def test_losses_that_are_other_quantities_have_axes_of_their_own() -> None:
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
        assert ", ".join(other_losses(made)) == words
    for tables in ({}, {"objective": {"label_smoothing": 0.1}}):
        plots, text = learning_curves(replace(facts, recipe=tables))
        assert isinstance(text, Prose)
        assert isinstance(plots, Plots)
        assert ("label smoothing (0.1), the test loss does not" in text.text) == bool(tables)
        assert (plots.items[0].title == "Training loss") == bool(tables)
    mixed = replace(facts, recipe={"augment": {"mixup": 0.2}})
    lost = replace(mixed, training=[point(0, math.nan), point(1, math.inf), *mixed.training])
    for made, words, others in (
        (mixed, "the class with the larger share counts as right", "cannot be drawn"),
        (lost, "2 recorded losses are infinite or not a number and cannot be drawn", "loss is"),
        (replace(lost, training=lost.training[1:]), "1 recorded loss is infinite", "losses are"),
    ):
        text = learning_curves(made)[1]
        assert isinstance(text, Prose)
        assert words in text.text
        assert others not in text.text


def test_curves_have_five_points_or_are_not_drawn() -> None:
    points = [point(i, 1.0, accuracy=0.5, agreed=i / 20) for i in range(9)]
    facts = replace(some(), training=points, testing=[])
    plots = learning_curves(facts)[0]
    assert isinstance(plots, Plots)
    titles = ["Loss", "Accuracy", "Agreement with the teacher"]
    assert [each.title for each in plots.items] == titles
    assert "training 40.0%" in plots.items[2].drawing
    assert "step" in re.findall(r"<text[^>]*>([^<]*)</text>", plots.items[0].drawing)
    assert learning_curves(replace(facts, training=points[:4])) == []


def test_text_in_drawings_is_readable_on_a_phone() -> None:
    for facts in (some(4), some(60)):
        text = section(facts, "confusion", "calibration", "curves")
        drawings = re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)
        assert len(drawings) >= 4
        for drawing in drawings:
            width = float(re.findall(r'viewBox="0 0 (\d+) ', drawing)[0])
            sizes = [float(size) for size in re.findall(r"font(?:-size)?: (\d+)px", drawing)]
            assert sizes
            assert min(sizes) * min(1, PHONE / width) >= (11 if width < 400 else 8)


def test_the_reason_of_a_high_calibration_error_is_given() -> None:
    under = [Bin(0.4, 0.5, 300, 0.45, 0.9), Bin(0.5, 0.6, 3, 0.55, 1.0)]
    smooth = {"objective": {"label_smoothing": 0.1}, "augment": {"mixup": 0.2}}
    facts = replace(some(), reliability=under, figures={"ece": 0.45}, recipe=smooth)

    def said(facts: RunFacts) -> str:
        return " ".join(each.text for each in trust(facts)[1] if isinstance(each, Prose))

    words = "trained with label smoothing (0.1) and Mixup, which keeps confidence below accuracy"
    assert words in said(facts)
    assert trust(facts)[0] == "strongly underconfident"
    over = [Bin(0.9, 1.0, 300, 0.95, 0.4)]
    assert "keeps confidence" not in said(replace(facts, reliability=over))
    assert "keeps confidence" not in said(replace(facts, recipe={}))
    assert trust(replace(facts, reliability=[])) == ("", [])
    few = replace(facts, reliability=[Bin(0.7, 0.8, 13, 0.7, 12 / 13)])
    assert trust(few)[0] == "off by no more than chance allows"
    many = replace(facts, reliability=[Bin(0.7, 0.8, 39, 0.7, 12 / 13)])
    assert trust(many)[0] == "strongly underconfident"


def test_each_class_has_its_figures() -> None:
    facts = some()
    facts = replace(facts, per_class=[ClassFigures("class 0", None, 0, 0, 9), *facts.per_class[1:]])
    text = section(replace(facts, predicted=[0, *facts.predicted[1:]]), "classes")
    assert "class 0 0.0% 0.0% 0.0% 9 0" in plain(text)
    names = re.findall(r'<th scope="row"><bdi>class (\d+)', text)
    f1 = [each.f1 or 0.0 for each in facts.per_class]
    assert [f1[int(n)] for n in names] == sorted(f1)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", text)]
    assert widths == pytest.approx([100 * each for each in sorted(f1)], abs=0.1)
    assert section(some(1000, 3000), "classes").count('<th scope="row">') == MANY


def test_doubtful_labels_say_what_they_show() -> None:
    facts = some(3)
    doubt = Judged("a/b.png", "class 0", "class 1", 0.75, 0.125, facts.mistakes[0].picture)
    lost = replace(doubt, name="a/c.png", picture=None, confidence=None)
    text = section(replace(facts, doubts=Doubts([doubt, lost], 40, 53.4, 1234)), "labels")
    for words in (
        "1,234 test images, 40 labels may be wrong; about 53 are estimated",
        "The likeliest ones.", "label 12.5%; likely class 75.0%", "no picture",
    ):  # fmt: skip
        assert words in text, words
    none = section(replace(facts, doubts=Doubts([], 0, 0.0, 300)), "labels")
    assert "None: no test image is confidently of another class" in none


def test_changed_options_are_noted() -> None:
    facts = some()
    changes = [{"step": 1200, "option": "lr", "before": 0.001, "after": 0.0003}, {
        "step": 1300, "option": "clip", "after": 1.0,
    }]  # fmt: skip
    made = replace(facts, recipe=facts.recipe | {"changes": changes})  # type: ignore[arg-type]
    assert run_page(made).notes[-2:] == [
        "from step 1,200 on, lr is 0.0003 (before: 0.001)",
        "from step 1,300 on, clip is 1 (before: –)",
    ]
    assert "changes" not in section(made, "recipe")


def test_pictures_are_small() -> None:
    """Many photographs and mistakes make a page of less than a megabyte."""
    facts, generator = some(), np.random.default_rng(0)
    rows, columns = np.mgrid[0:224, 0:224]
    waves = [127 + 90 * np.sin(rows / (7 + c) + columns / 11) for c in range(3)]
    pixels = np.stack(waves, -1) + generator.normal(0, 8, (224, 224, 3))
    photo = pixels.clip(0, 255).astype(np.uint8)
    judged = replace(facts.mistakes[0], picture=photo)
    heads = generator.random((8, 14, 14), np.float32)
    seen = [SeenImage("a.jpg", photo, maps={"late_attention": heads[0]}, heads=heads)] * 4
    text = rendered(run_page(replace(facts, mistakes=[judged] * 60, inside=Looked("m", seen, 8))))
    assert 200_000 < len(text) < 1_000_000
    files = [
        base64.b64decode(each) for each in re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    ]
    assert {Image.open(io.BytesIO(each)).size for each in files} == {(160, 160), (224, 224)}
    tiny = section(some(channels=1), "mistakes")
    kept = re.findall(r"data:image/png;base64,([^\"]+)", tiny)
    assert Image.open(io.BytesIO(base64.b64decode(kept[0]))).size == (8, 8)
