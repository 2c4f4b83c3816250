"""How much of each map of a model falls on the object: its share within a box marked by hand.

    python benchmarks/object_maps.py WEIGHTS PHOTOS

PHOTOS is a folder of ImageNet's photographs that has those named below (`n01440764_tench.JPEG`).
Each is cropped to its middle square. A box is left, top, right and bottom as shares of the square;
where a map is even, its share is that of the box. What needs a classifier is left out.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import vitlab
from vitlab.models.model import Model

Box = tuple[float, float, float, float]
BOXES: dict[str, Box] = {
    "n01440764_tench": (0, 0.34, 0.97, 0.80),
    "n01682714_American_chameleon": (0, 0.05, 1, 0.83),
    "n01795545_black_grouse": (0.27, 0.34, 0.72, 0.60),
    "n01980166_fiddler_crab": (0.19, 0.25, 0.92, 0.87),
    "n02088094_Afghan_hound": (0, 0.02, 0.93, 1),
    "n02097474_Tibetan_terrier": (0, 0.06, 0.97, 1),
    "n02107908_Appenzeller": (0.40, 0.18, 1, 1),
    "n02120505_grey_fox": (0.27, 0.27, 0.85, 0.65),
    "n02268853_damselfly": (0, 0.43, 0.85, 1),
    "n02444819_otter": (0.22, 0.40, 0.54, 0.62),
    "n02669723_academic_gown": (0.07, 0, 0.92, 1),
    "n02823428_beer_bottle": (0.2, 0.1, 0.95, 0.82),
    "n02977058_cash_machine": (0.26, 0.03, 0.73, 0.98),
    "n03131574_crib": (0, 0.05, 1, 0.93),
    "n03532672_hook": (0.42, 0.22, 0.65, 0.9),
    "n03825788_nipple": (0.05, 0, 0.92, 1),
    "n03937543_pill_bottle": (0.37, 0.17, 0.73, 0.67),
    "n04070727_refrigerator": (0.29, 0, 0.8, 1),
    "n04509417_unicycle": (0.5, 0.3, 0.75, 1),
    "n06874185_traffic_light": (0.35, 0, 0.8, 1),
}
FINE = 320  # pixels of a map in which a box is counted
SMALL = 0.5  # share of the square, up to which an object is small


def square(file: Path) -> Image.Image:
    """Return the middle square of a photograph."""
    photo = Image.open(file).convert("RGB")
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    return photo.crop((left, top, left + side, top + side))


def normalized(photo: Image.Image, model: Model) -> Tensor:
    """Return a whole square as the model takes it, (1, 3, H, W)."""
    rows, columns = model.config.size
    pixels = torch.from_numpy(np.array(photo.resize((columns, rows)))).permute(2, 0, 1) / 255
    mean, std = (
        torch.tensor(each)[:, None, None] for each in (model.config.mean, model.config.std)
    )
    return ((pixels - mean) / std)[None]


def maps(model: Model, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each map of one image, (rows, columns), by its name."""
    yield "rollout, all layers", vitlab.inspect.rollout(model, images)[0]
    depth = len(model.attention_maps(images))  # type: ignore[attr-defined]
    for layers in (6, 4, 3, 2, 1):
        found = vitlab.inspect.rollout(model, images, first=max(1, depth - layers + 1))
        yield f"rollout, last {layers}", found[0]
    for layer in range(depth - 3, depth):
        heads = vitlab.inspect.class_attention(model, images, layer + 1)[0]
        yield f"class token, layer {layer + 1}, mean of heads", heads.mean(0)
        even = heads / heads.sum((1, 2), keepdim=True)
        yield f"class token, layer {layer + 1}, median of heads", even.median(0).values
    yield "token norms, last layer", vitlab.inspect.norm_map(model, images)[0]


def within(values: Tensor, box: Box) -> float:
    """Return the share of a map in a box."""
    fine = F.interpolate(values.clamp(min=0)[None, None], (FINE, FINE))[0, 0]
    left, top, right, bottom = (int(FINE * each) for each in box)
    return float(fine[top:bottom, left:right].sum() / fine.sum())


def main() -> None:
    """Print the mean share of each map, of all objects and of the small ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--image-size", type=int, default=224)
    given = parser.parse_args()
    model = vitlab.load(given.weights, image_size=given.image_size).eval()
    found: dict[str, list[float]] = {}
    for name, box in BOXES.items():
        image = normalized(square(given.photos / f"{name}.JPEG"), model)
        with torch.inference_mode():
            for title, values in maps(model, image):
                found.setdefault(title, []).append(within(values.float(), box))
    areas = np.array(
        [(right - left) * (bottom - top) for left, top, right, bottom in BOXES.values()]
    )
    small = areas < SMALL
    print(f"{model.config.name}, {len(areas)} photographs, {small.sum()} of small objects\n")
    print("| map | on the object | small objects | more than its area |\n" + "| --- " * 4 + "|")
    print(f"| (area of the boxes) | {areas.mean():.1%} | {areas[small].mean():.1%} | |")
    for title, each in found.items():
        shares = np.array(each)
        more = f"{(shares > areas).sum()} of {len(areas)}"
        print(f"| {title} | {shares.mean():.1%} | {shares[small].mean():.1%} | {more} |")


if __name__ == "__main__":
    main()
