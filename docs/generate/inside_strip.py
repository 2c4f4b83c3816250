"""The pictures of docs/inspect.md: `python docs/generate/inside_strip.py RUN FOLDER`.

They show what a model trained on the digits makes of a few of them.
"""

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import vitlab
from vitlab.data.open_splits import open_to_learn
from vitlab.pages import palette as theme

CLASSES = (3, 5, 6, 8)
SHADES = {"light": theme.LIGHT, "dark": theme.DARK}


def seen(model: vitlab.VisionTransformer) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Return what the model sees, (B, H, W) from 0 to 1, and maps (B, rows, columns, …) by name."""
    test = open_to_learn("digits").test
    numbers = [int((test.target.values == label).argmax()) for label in CLASSES]
    files = [test.image(number).decode(1)[..., 0] for number in numbers]
    images = vitlab.preprocess(model)(files)
    guesses = model(images).argmax(1)
    heads = vitlab.inspect.class_attention(model, images)
    maps = [
        ("rollout", vitlab.inspect.rollout(model, images)),
        ("relevance", vitlab.inspect.relevance(model, images, guesses)),
        ("Grad-CAM", vitlab.inspect.gradcam(model, images, guesses)),
        *((f"head {n + 1}", heads[:, n]) for n in range(heads.shape[1])),
        ("colors (layer 2)", vitlab.inspect.feature_colors(model, images, layer=2)),
    ]
    pixels = images * torch.tensor(model.config.std) + torch.tensor(model.config.mean)
    return pixels[:, 0].clamp(0, 1), maps


def strip(pixels: Tensor, maps: list[tuple[str, Tensor]], colors: theme.Theme) -> Figure:
    """Draw a row for each image: the image itself, then its maps."""
    rows, columns = len(pixels), 1 + len(maps)
    with mpl.rc_context({"text.color": colors["ink"], "font.size": 9}):
        figure = Figure(figsize=(0.98 * columns, 0.98 * rows + 0.3), dpi=100, layout="constrained")
        figure.set_facecolor(colors["card"])
        grid: Any = figure.subplots(rows, columns)
        extent = (0, pixels.shape[2], pixels.shape[1], 0)
        for row, image in enumerate(pixels.numpy()):
            grid[row, 0].imshow(image, cmap="gray", vmin=0, vmax=1)
            for axes, (_, values) in zip(grid[row, 1:], maps, strict=True):
                shown = values[row].float().numpy()
                if shown.ndim == 2:
                    axes.imshow(image, cmap="gray", vmin=0, vmax=1)
                    cover = {"cmap": "inferno", "vmin": 0, "alpha": 0.75}
                    axes.imshow(shown, interpolation="bilinear", extent=extent, **cover)
                else:
                    axes.imshow(shown, extent=extent)
        for axes, name in zip(grid[0], ["image", *(name for name, _ in maps)], strict=True):
            axes.set_title(name, fontsize=9)
        for axes in grid.flat:
            axes.set_axis_off()
        return figure


def main(run: str, folder: Path) -> None:
    """Write inside-light.png and inside-dark.png into a folder."""
    model = vitlab.load(run)
    assert isinstance(model, vitlab.VisionTransformer)
    pixels, maps = seen(model.eval())
    for shade, colors in SHADES.items():
        file = folder / f"inside-{shade}.png"
        buffer = io.BytesIO()
        strip(pixels, maps, colors).savefig(buffer, format="png")
        Image.open(buffer).convert("RGB").quantize(256).save(file, optimize=True)
        print(file, f"{file.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
