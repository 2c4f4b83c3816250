"""What a page shows of a model: each pixel of a map is a patch, each scale says what it means."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from PIL import Image

from vitlab.report.inside.looking import Looked, SeenImage
from vitlab.report.inside.sights import inside_blocks, model_blocks, model_figures, write_inspection
from vitlab.report.page import Page, Plots, Section, rendered
from vitlab.report.thumbnails import COVER

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (30, 40, 3), np.uint8)


def decoded(uri: str) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    return np.asarray(image)


def box(*images: SeenImage) -> str:
    """The part of a page that shows images."""
    blocks = inside_blocks(Looked("m", list(images)), "vitlab inspect")
    return rendered(Page("m", sections=[Section("inside", "Inside", blocks)]))


def lens(kind: str, values: np.ndarray, **more: Any) -> tuple[np.ndarray, str]:
    """The pixels of a map, and the part of the page that shows it."""
    image = SeenImage("a.png", PIXELS, maps={kind: values.astype(np.float32)}, **more)
    text = box(image).split("<figure>")[2]
    return decoded(re.findall(r'src="([^"]+)"', text)[0]), text


def test_a_map_has_a_pixel_for_each_patch_in_the_colors_of_its_scale() -> None:
    values = GENERATOR.random((3, 4))
    pixels, text = lens("rollout", values)
    want = colormaps["inferno"](values.astype(np.float32) / values.max(), bytes=True)
    assert np.abs(pixels[..., :3].astype(int) - want[..., :3]).max() <= 1
    assert (pixels[..., 3] == round(255 * COVER)).all()
    assert f"{values.max() / values.sum():.2%} of the sum" in text
    row, column = divmod(int(values.argmax()), 4)
    assert f"highest in row {row + 1} of 3, column {column + 1} of 4" in text


def test_the_patch_that_others_are_like_is_framed() -> None:
    _, text = lens("similar_patches", GENERATOR.random((3, 4)), patch=(2, 1))
    assert "left:25.00%;top:66.67%;width:25.00%;height:33.33%" in text


def test_a_flat_map_is_drawn_evenly() -> None:
    for kind in ("rollout", "norm_map", "similar_patches"):
        for value in (0.0, 1.0):
            pixels, _ = lens(kind, np.full((2, 2), value))
            assert (pixels == pixels[0, 0]).all()


def test_weights_and_layers_are_drawn() -> None:
    filters = GENERATOR.random((9, 5, 5, 3), np.float32)
    positions = GENERATOR.random((2, 3, 2, 3), np.float32)
    table = GENERATOR.random((3, 4), np.float32)
    found = Looked(
        "m", arrays={
            "embedding_filters": filters, "position_similarity": positions,
            "attention_distance": table, "attention_entropy": table, "token_norms": table[0],
            "longest_tokens": table[1], "token_similarity": table[2],
        },
    )  # fmt: skip
    (plots,) = model_blocks(found)
    assert isinstance(plots, Plots)
    titles = [each.title for each in plots.items]
    assert titles[-2:] == ["Filters", "Positions"]
    assert len(titles) == 6 == len([*model_figures(found)])
    text = "".join(str(each.drawing) for each in plots.items)
    assert "var(--blue)" in text  # in the colors of the page
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_names_are_escaped_and_heads_say_how_much_they_look() -> None:
    heads = np.ones((9, 2, 2), np.float32)
    images = [SeenImage(f"a/{n}/<b>.png", PIXELS[..., 0], heads=heads) for n in range(2)]
    text = box(*images)
    assert text.count('<div class="lens">') == 2 * len(heads)
    assert "1 · 100%" in text
    few = box(SeenImage("a", PIXELS, heads=heads[:2] * [[[0.15]], [[0.05]]]))
    assert ["1 · 15%" in few, "2 · 5.0%" in few] == [True, True]
    assert "<h3><bdi>0/&lt;b&gt;.png</bdi></h3>" in text
    assert "--ratio:1.3333" in text
    assert inside_blocks(None, "") == []


def test_the_page_begins_with_the_map_that_shows_the_object(tmp_path: Path) -> None:
    """One map an image, the rest folded; without attention the first map is another one."""
    flat = np.ones((2, 2), np.float32)
    for maps, title, words in (
        (("rollout", "late_attention", "norm_map"), "Where the last layers look", "70% of it lay"),
        (("norm_map", "gradcam"), "Grad-CAM", "no attention to show"),
        (("norm_map",), "Token norms", "no attention to show"),
    ):
        image = SeenImage(
            "a.png", PIXELS, maps=dict.fromkeys(maps, flat), colors=np.ones((2, 2, 3), np.float32)
        )
        first, rest = box(image).split("<details>", 1)
        assert first.count("<figure>") == 2
        assert title in first.split('<div class="lenses">')[1]
        assert words in first
        assert rest.split("</details>")[0].count("<figure>") == len(maps)
    found = Looked("m", [image], 1, arrays={"token_similarity": flat[0]})
    write_inspection(tmp_path / "inside", found, "vitlab inspect")
    text = (tmp_path / "inside" / "inspect.html").read_text()
    assert '<h2 id="images-title"><bdi>Token norms</bdi></h2>' in text
    folded = text.split('<details id="model"><summary>')[1]
    assert "token similarity" in folded.split("</summary>")[0]
    names = {each.name for each in (tmp_path / "inside").iterdir()}
    assert {"inspect.json", "similarity.svg", "01-norm_map.png", "01-colors.svg"} <= names
    write_inspection(tmp_path / "again", found, "vitlab inspect")
    for name in names:  # the same bytes, so that folders can be compared
        both = [(tmp_path / folder / name).read_bytes() for folder in ("inside", "again")]
        assert both[0] == both[1], name
