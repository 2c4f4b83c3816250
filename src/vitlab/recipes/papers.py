"""The papers' recipes; each is a function of the model's name and cites its source.

Values are the paper's own where it prints them. Otherwise they come from the paper's code or are
our choice; the docstring says which.
"""

from dataclasses import replace
from typing import Any

from vitlab.data.settings import Augment
from vitlab.errors import OptionError
from vitlab.images import IMAGENET
from vitlab.models.config import kind_of
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.names import shape_of
from vitlab.recipes.losses import Distill, ObjectivePart
from vitlab.recipes.model_part import model_part, width_of
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.recipe import Recipe
from vitlab.recipes.schedule import Schedule

CROP = Augment(area=0.05, aspect=4 / 3, flip=True)  # the inception crop of ViT's pre-training
DEIT_CROP = Augment(area=0.08, aspect=4 / 3, flip=True)

# ViT paper, Table 3: epochs and learning rate on JFT-300M; 14 epochs where both 7 and 14 are given
JFT = {
    "ViT-B/32": (7, 8e-4),
    "ViT-B/16": (7, 8e-4),
    "ViT-L/32": (7, 6e-4),
    "ViT-L/16": (14, 4e-4),
    "ViT-H/14": (14, 3e-4),
    "BiT-R50x1": (7, 1e-3),
    "BiT-R50x2": (7, 1e-3),
    "BiT-R101x1": (7, 8e-4),
    "BiT-R152x1": (7, 6e-4),
    "BiT-R152x2": (7, 6e-4),
    "BiT-R200x3": (14, 6e-4),  # its learning rate is not printed: R152x2's
    "R50+ViT-B/32": (7, 8e-4),
    "R50+ViT-B/16": (7, 8e-4),
    "R50+ViT-L/32": (7, 2e-4),
    "R50+ViT-L/16": (14, 4e-4),
}


def vit_jft(model: str = "ViT-B/16") -> Recipe:
    """ViT paper, Table 3: pre-training on JFT-300M, all sizes, ResNets and hybrids included.

    Epochs and learning rate are those of the model's row; a model without a row takes ViT-B's. Adam
    with decay of 0.1 times the learning rate is AdamW. Linear schedule down to 1e-5 (its authors,
    in the issues of their code). Batches of 4,096, warm-up over 10,000 steps, about 300 million
    images.
    """
    epochs, lr = JFT.get(model, (7, 8e-4))
    return _vit("vit-jft", model, epochs=epochs, lr=lr, decay=0.1, dropout=0.0, shape="linear")


def vit_imagenet21k(model: str = "ViT-B/16") -> Recipe:
    """ViT paper, Table 3: pre-training on ImageNet-21k, 90 epochs.

    The paper trains ViT-L for 30 or 90 epochs; the released weights took 90.
    """
    return _vit(
        "vit-imagenet21k", model, epochs=90, lr=1e-3, decay=0.03, dropout=0.1, shape="linear"
    )


def vit_imagenet(model: str = "ViT-B/16") -> Recipe:
    """ViT paper, Table 3: ImageNet from scratch, 300 epochs.

    Cosine schedule to zero. Only here the gradient is clipped, to a norm of 1 (Table 3's caption).
    """
    return _vit(
        "vit-imagenet", model, epochs=300, lr=3e-3, decay=0.3, dropout=0.1, shape="cosine", clip=1.0
    )


def _vit(
    name: str,
    model: str,
    *,
    epochs: float,
    lr: float,
    decay: float,
    dropout: float,
    shape: str,
    clip: float = 0.0,
) -> Recipe:
    """Return what all rows of Table 3 share; ResNets have no dropout and no tanh layer."""
    part: dict[str, Any] = {"image_size": 224, "crop": 0.875, "zero_head": True}
    part["head_bias"] = -10.0  # its authors for ImageNet-21k, scenic for ImageNet
    if not model:
        part["dropout"] = dropout  # the layers are those of the weights
    elif kind_of(model) is ViTConfig:
        part |= {"pre_logits": shape_of(model)["width"], "gelu": "tanh", "dropout": dropout}
    linear = shape == "linear"
    return Recipe(
        recipe=name,
        model=model_part(model, **part),
        augment=CROP,
        objective=ObjectivePart(loss="sigmoid"),
        optimizer=Optimization(lr=lr, weight_decay=decay, clip=clip),
        schedule=Schedule(
            schedule="linear" if linear else "cosine",
            warmup_steps=10_000,
            final_lr=1e-5 / lr if linear else 0.0,
        ),
        epochs=epochs,
        batch=4096,
    )


def vit_finetune(model: str = "") -> Recipe:
    """ViT paper, Table 4: fine-tuning trained weights at 384 pixels by SGD; 20,000 steps as there.

    The learning rate is to be searched (`--sweep`): 0.003, 0.01, 0.03, 0.06 in 20,000 steps on
    ImageNet; 0.001, 0.003, 0.01, 0.03 in 10,000 steps on CIFAR, and in 500 steps, 100 of them
    warm-up, on Pets and Flowers; 0.01 in 2,500 steps on VTAB. The warm-up of 500 steps, the crops
    and the zero classifier are from the code, which squashes whole images for evaluation (`--fit
    squash --crop 1`; here as the weights have it). Patches of 14 take 518 pixels, as H/14 in Table
    2, where ImageNet also had 512 for L/16 (`--image-size 512`), and a Polyak average: `--ema
    0.9999 --no-ema-warmup`.
    """
    patch = shape_of(model).get("patch", 32) if model else 32
    return Recipe(
        recipe="vit-finetune",
        model=model_part(model, image_size=384 if 384 % patch == 0 else 37 * patch),
        augment=CROP,
        optimizer=Optimization(optimizer="sgd", lr=0.03, weight_decay=0.0, clip=1.0),
        schedule=Schedule(warmup_steps=500),
        steps=20_000,
        batch=512,
    )


def bit_finetune(model: str = "") -> Recipe:
    """BiT-HyperRule (Kolesnikov et al., 2020, section 3.3): fine-tuning without a search.

    The ViT paper's alternative for ResNets: SGD at 0.003 with tenfold drops, squares of 480 pixels,
    Mixup 0.1. These values, of its code's bit_hyperrule.py, are for 20,000 to 500,000 training
    images of 96x96 pixels or more. More images: `--steps 20000`; fewer: `--steps 500 --warmup-steps
    100 --drops 0.4 0.6 0.8 --mixup 0`; smaller ones: `--image-size 128 --area 0.64`. Its crops all
    have the least area of ours.
    """
    first = vit_finetune(model)
    size = max(480, first.model.chosen()["image_size"])
    return replace(
        first,
        recipe="bit-finetune",
        model=model_part(model, image_size=size, fit="squash", crop=1.0),
        augment=Augment(area=(480 / 512) ** 2, aspect=1.0, flip=True, mixup=0.1),
        optimizer=replace(first.optimizer, lr=0.003, clip=0.0),
        schedule=Schedule(schedule="steps", warmup_steps=500),
        steps=10_000,
    )


def plain_vit(model: str = "ViT-S/16") -> Recipe:
    """Better plain ViT baselines (Beyer et al., 2022): ImageNet in 90 epochs, 76.5% with ViT-S/16.

    The paper's positions are fixed sines and cosines; here they are learned (1d). RandAugment has
    the ranges of its code (big_vision), without Cutout.
    """
    _width(model, "plain-vit")
    return Recipe(
        recipe="plain-vit",
        model=model_part(
            model, image_size=224, crop=0.875, pool="mean", gelu="tanh", zero_head=True
        ),
        augment=replace(
            CROP,
            rand_ops=2,
            rand_magnitude=10.0,
            rand_std=0.0,
            rand_probability=1.0,
            rand_increasing=False,
            mixup=0.2,
        ),
        # its decay of 1e-4 a step is the learning rate times 0.1
        optimizer=Optimization(lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=Schedule(warmup_steps=10_000),
        epochs=90,
        batch=1024,
    )


def three_things(model: str = "ViT-S/16") -> Recipe:
    """Three things everyone should know about ViTs, section 2: A2 adapted, 300 epochs.

    A2 is from Wightman et al. (ResNet strikes back, Table 2): LAMB, batches of 2,048, weight decay
    0.02, five epochs of warm-up. The learning rate (4e-3 for Ti and S, 3e-3 for B and L) and the
    stochastic depth (0, 0.05, 0.1, 0.4) are the paper's. They follow the width, so that deeper and
    parallel models, whose values are not printed, take those of their size. Clipping at 1 is part
    of the LAMB implementations that both papers used; the last learning rate, 1e-5, is from DeiT's
    code.
    """
    width = _width(model, "three-things")
    drop = 0.0 if width <= 192 else 0.05 if width <= 384 else 0.1 if width <= 768 else 0.4
    lr = 4e-3 if width <= 384 else 3e-3
    return Recipe(
        recipe="three-things",
        model=model_part(
            model, image_size=224, crop=0.95, interpolation="bicubic", drop_path=drop, **IMAGENET
        ),
        augment=replace(
            DEIT_CROP,
            rand_ops=2,
            rand_magnitude=7.0,
            mixup=0.1,
            cutmix=1.0,
            repeats=3,
            augment_interpolation="bicubic",
        ),
        objective=ObjectivePart(loss="bce", bce_threshold=0.0),
        optimizer=Optimization(optimizer="lamb", lr=lr, weight_decay=0.02, eps=1e-6, clip=1.0),
        schedule=Schedule(warmup=5, final_lr=1e-5 / lr),
        epochs=300,
        batch=2048,
    )


def three_things_400(model: str = "ViT-S/16") -> Recipe:
    """Three things, section 2: the same for 400 epochs, with LayerScale from 1e-4.

    The initial LayerScale is not printed: 1e-4 is the default of the paper's code.
    """
    first = three_things(model)
    part = model_part(model, **first.model.chosen() | {"layer_scale": 1e-4})
    return replace(first, recipe="three-things-400", model=part, epochs=400)


def deit_distilled(model: str = "ViT-Ti/16") -> Recipe:
    """DeiT with its distillation token (Touvron et al., 2021, Table 9), 300 epochs of ImageNet.

    Hard distillation, with half of the loss. The paper's teacher, RegNetY-16GF, cannot be loaded
    here: unless `--teacher` names another, it is DeiT-B. The last learning rate, 1e-5, is that of
    DeiT's code.
    """
    _width(model, "deit-distilled")
    return Recipe(
        recipe="deit-distilled",
        model=model_part(
            model, image_size=224, crop=0.875, interpolation="bicubic", drop_path=0.1,
            drop_path_ramp=True, **IMAGENET,
        ),
        augment=replace(
            DEIT_CROP, rand_ops=2, rand_magnitude=9.0, mixup=0.8, cutmix=1.0, erase=0.25,
            repeats=3, augment_interpolation="bicubic",
        ),
        objective=ObjectivePart(label_smoothing=0.1),
        distill=Distill(
            teacher="timm/deit_base_patch16_224.fb_in1k", distill="hard", distill_token=True
        ),
        optimizer=Optimization(lr=1e-3, weight_decay=0.05, clip=0.0),
        schedule=Schedule(warmup=5, final_lr=1e-2),
        epochs=300,
        batch=1024,
    )  # fmt: skip


def deit3(model: str = "ViT-S/16") -> Recipe:
    """DeiT III (Touvron et al., 2022): ImageNet in 800 epochs, by its code's flags.

    Images have 224 pixels for S, 192 for B and L, and 154 for H, of whose 160 its patches of 14
    cover 154; the larger ones are fine-tuned at 224. Stochastic depth is 0.05 for S, 0.2 for B,
    0.45 for L, 0.6 for H; none for Ti (not trained).
    """
    width = _width(model, "deit3")
    known = ((192, 0.0, 224), (384, 0.05, 224), (768, 0.2, 192), (1024, 0.45, 192))
    drop, size = next((each for limit, *each in known if width <= limit), (0.6, 154))
    lr = 4e-3 if width <= 384 else 3e-3
    return Recipe(
        recipe="deit3",
        model=model_part(
            model,
            image_size=size,
            crop=1.0,
            interpolation="bicubic",
            layer_scale=1e-4,
            drop_path=drop,
            **IMAGENET,
        ),
        augment=replace(
            DEIT_CROP, three_augment=True, color_jitter=0.3, mixup=0.8, cutmix=1.0, repeats=3
        ),
        objective=ObjectivePart(loss="bce", bce_threshold=0.0),
        optimizer=Optimization(optimizer="lamb", lr=lr, weight_decay=0.05, eps=1e-6, clip=1.0),
        schedule=Schedule(warmup=5, final_lr=1e-5 / lr),
        epochs=800,
        batch=2048,
    )


def _width(model: str, recipe: str) -> int:
    """Return the width of a Vision Transformer; of weights, that of ViT-S; refuse other models."""
    if kind_of(model) is not ViTConfig:
        raise OptionError(
            f"{recipe} trains Vision Transformers, not {model}: choose one, such as ViT-S/16"
        )
    return width_of(model or "ViT-S/16")


PAPERS = (
    vit_jft,
    vit_imagenet21k,
    vit_imagenet,
    vit_finetune,
    bit_finetune,
    plain_vit,
    three_things,
    three_things_400,
    deit_distilled,
    deit3,
)
