"""The recipe that the arms of a study start from within a budget."""

from vitlab.recipes.named import recipe
from vitlab.recipes.recipe import Recipe

DIGITS = "ViT(width=64,depth=4,heads=2,mlp=128)/2"
SMALL = "ViT(width=96,depth=4,heads=3,mlp=192)/4"


def small(data: str, model: str = "") -> Recipe:
    """Return the recipe that the arms of small budgets start from.

    A ViT of width 96 and depth 4 on images of 32 pixels, which are cut into 8x8 patches, with a
    class token, AdamW, flips and bf16; for the digits, of width 64 on 8 pixels, in 4x4
    patches, in fp32. Images of any other size are resized. Every run is tested once, at its end.

    Args:
        data: what to learn from
        model: in place of this one
    """
    digits = data == "digits"
    first = recipe(
        "digits" if digits else "cifar10",
        data=data,
        model=model or (DIGITS if digits else SMALL),
        image_size=8 if digits else 32,
    )
    # a shift of short runs costs more than it teaches (docs/log.md)
    augment = {} if digits else {"shift": 0.0}
    return first.changed(
        lr=2e-3, epochs=1.0, warmup=0.1, ema=0.99, batch=64, test_every=1e6, **augment
    )
