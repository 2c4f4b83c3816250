"""The recipes of learning without labels, by the papers that they follow."""

from vitlab.data.settings import Augment
from vitlab.recipes.choices import Optimization, Schedule
from vitlab.recipes.model_part import model_part
from vitlab.recipes.pretext import Pretext
from vitlab.recipes.recipe import Recipe


def masked_patch(model: str = "ViT-B/16") -> Recipe:
    """Masked patch prediction as in the ViT paper's B.1.2: Adam, lr 2e-4 at batch 4,096, cosine.

    Half of the patch embeddings are corrupted, and the mean color of each is predicted.
    """
    return Recipe(
        recipe="masked-patch",
        model=model_part(model),
        pretext=Pretext(task="masked-patch"),
        augment=Augment(area=0.05, flip=True),
        optimizer=Optimization(optimizer="adam", lr=2e-4, weight_decay=0.0),
        schedule=Schedule(warmup_steps=10_000),
        epochs=14,
        batch=4096,
        precision="bf16",
    )


def mae(model: str = "ViT-B/16") -> Recipe:
    """Masked autoencoders (He et al., 2021): 75% hidden, AdamW, lr 1.5e-4 per 256 images."""
    return Recipe(
        recipe="mae",
        model=model_part(model),
        pretext=Pretext(task="mae", mask_ratio=0.75),
        augment=Augment(area=0.2, flip=True),
        optimizer=Optimization(lr=2.4e-3, weight_decay=0.05, betas=(0.9, 0.95), clip=0),
        schedule=Schedule(warmup=40),
        epochs=800,
        batch=4096,
        precision="bf16",
    )


PRETRAINING = (masked_patch, mae)
