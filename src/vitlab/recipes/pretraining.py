"""The recipes of learning without labels, by the papers that they follow."""

from dataclasses import replace
from typing import Any

from vitlab.data.settings import Augment, Data
from vitlab.images import IMAGENET
from vitlab.models.config import kind_of
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.recipes.losses import ObjectivePart
from vitlab.recipes.model_part import ModelPart, model_part, width_of
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.pretext import Pretext
from vitlab.recipes.recipe import Recipe
from vitlab.recipes.schedule import Average, Schedule

USUAL = "ViT-B/16"  # whose row weights without a model's name have
SCENES = "ViT(width=96,depth=4,heads=3,mlp=384)/8"
AFTER = Augment(  # of fine-tuning, in the code of BEiT and of MAE
    area=0.08, flip=True, rand_ops=2, mixup=0.8, cutmix=1.0, erase=0.25,
    augment_interpolation="bicubic",
)  # fmt: skip


def masked_patch(model: str = "ViT-B/16") -> Recipe:
    """Masked patch prediction, ViT paper, B.1.2: Adam, lr 2e-4 at batch 4,096, a million steps.

    Half of the patch embeddings are corrupted, and the mean color of each is predicted. Cosine
    after a warm-up of 10,000 steps, no clipping (the paper has it for ImageNet from scratch alone).
    The million steps are 14 epochs of JFT-300M; the paper found 100,000 enough, `--steps 100000`.
    With `--epochs` or `--budget` a hundredth of the run warms up. Weight decay is not printed: none
    here; crops are those of the paper's other pre-training.
    """
    return Recipe(
        recipe="masked-patch",
        model=model_part(model),
        pretext=Pretext(task="masked-patch"),
        augment=Augment(area=0.05, flip=True),
        optimizer=Optimization(optimizer="adam", lr=2e-4, weight_decay=0.0, clip=0.0),
        schedule=Schedule(warmup_steps=10_000),
        steps=1_000_000,
        batch=4096,
    )


def beit(model: str = "ViT-B/16") -> Recipe:
    """BEiT (Bao et al., 2021) on ImageNet in 800 epochs: blocks of 75 in 196 patches are hidden.

    Values are those of the paper's code (microsoft/unilm, beit): AdamW, lr 1.5e-3 at batch 2,048
    down to 1e-5, decay 0.05, clipping at 3, warm-up of 10 epochs, stochastic depth up to 0.1,
    LayerScale from 0.1 (1e-5 for ViT-L and wider), one table of relative positions for all blocks.
    Name a tokenizer with `--tokenizer`. Three things, section 5, has 300 epochs.
    """
    wide = width_of(model or USUAL) >= 1024
    part = {
        "interpolation": "bicubic",
        "positions": "bias",
        "positions_at": "shared",
        "class_token": True,
        "pool": "mean",
        "norm_at": "pooled",
        "layer_scale": 1e-5 if wide else 0.1,
        "drop_path": 0.1,
        "drop_path_ramp": True,
        **IMAGENET,
    }
    return Recipe(
        recipe="beit",
        model=model_part(model, **part),
        pretext=Pretext(task="beit", mask_ratio=75 / 196),
        augment=Augment(area=0.08, flip=True, color_jitter=0.4),
        optimizer=Optimization(lr=1.5e-3, weight_decay=0.05, clip=3.0),
        schedule=Schedule(warmup=10, final_lr=1e-5 / 1.5e-3),
        epochs=800,
        batch=2048,
    )


def beit_finetune(model: str = "") -> Recipe:
    """Fine-tuning after BEiT, as its code does ViT-B on ImageNet: layer-wise decay 0.65.

    AdamW, lr 4e-3 at batch 1,024 down to 1e-6, 100 epochs of which 20 warm up, RandAugment, Mixup,
    CutMix, erasing. The mean of the patches, LayerScale and positions are those of the weights: a
    table of relative positions that all blocks share stays one, where BEiT's code gives each block
    a copy. Evaluation's crop is that of the weights, in the code 0.875 (`--crop 0.875`), and a new
    classifier starts at zero, there near it. ViT-L: `--epochs 50 --warmup 5 --lr 1e-3 --layer-decay
    0.75 --drop-path 0.2`.
    """
    return Recipe(
        recipe="beit-finetune",
        model=model_part(model, drop_path=0.1, drop_path_ramp=True),
        augment=AFTER,
        objective=ObjectivePart(label_smoothing=0.1),
        optimizer=Optimization(lr=4e-3, weight_decay=0.05, clip=0, layer_decay=0.65),
        schedule=Schedule(warmup=20, final_lr=1e-6 / 4e-3),
        epochs=100,
        batch=1024,
    )


def mae(model: str = "ViT-B/16") -> Recipe:
    """Masked autoencoders (He et al., 2021) on ImageNet in 800 epochs: 75% of patches are hidden.

    Table 8: AdamW with betas 0.9 and 0.95, lr 1.5e-4 per 256 images, so 2.4e-3 at batch 4,096,
    decay 0.05, warm-up of 40 epochs, crops of at least 20%. No clipping, bicubic crops, ImageNet's
    normalization and fixed sines and cosines as positions are from the code (facebookresearch/mae).
    The decoder has 8 blocks 512 wide. For models narrower than ViT-B, whose work that would more
    than double, it has 4 blocks of half the encoder's width (our choice). The last norm is on the
    mean of the patches, as fine-tuning then has it.
    """
    width = width_of(model or USUAL)
    # each 32 wide, as the paper's
    large = width >= 768
    heads = max(1, width // 64)
    part: dict[str, Any] = {"interpolation": "bicubic", **IMAGENET}
    if kind_of(model) is ViTConfig:
        part |= {"positions": "sincos", "class_token": True, "pool": "mean", "norm_at": "pooled"}
    return Recipe(
        recipe="mae",
        model=model_part(model, **part),
        pretext=Pretext(
            task="mae",
            mask_ratio=0.75,
            decoder_width=512 if large else 32 * heads,
            decoder_depth=8 if large else 4,
            decoder_heads=16 if large else heads,
        ),
        augment=Augment(area=0.2, flip=True),
        optimizer=Optimization(lr=2.4e-3, weight_decay=0.05, betas=(0.9, 0.95), clip=0),
        schedule=Schedule(warmup=40),
        epochs=800,
        batch=4096,
    )


def mae_finetune(model: str = "") -> Recipe:
    """Fine-tuning after MAE on ImageNet, as its code does (facebookresearch/mae, FINETUNE.md).

    AdamW down to 1e-6, batch 1,024, 5 epochs of warm-up, RandAugment, Mixup, CutMix, erasing.
    ViT-B, and weights without a model named: 100 epochs, lr 2e-3, layer-wise decay 0.65, stochastic
    depth 0.1. ViT-L: 50 epochs, lr 4e-3, decay 0.75, depth 0.2; ViT-H and wider the same with 0.3.
    Evaluation's crop is that of the weights, in the code 0.875 (`--crop 0.875`).
    The classifier sees the mean of the patches after `vitlab pretrain`; released weights have a
    class token, which `--pool mean` leaves aside.
    """
    width = width_of(model or USUAL)
    large = width >= 1024
    lr, drop = (4e-3, 0.3 if width >= 1280 else 0.2) if large else (2e-3, 0.1)
    return Recipe(
        recipe="mae-finetune",
        model=model_part(model, drop_path=drop, drop_path_ramp=True),
        augment=AFTER,
        objective=ObjectivePart(label_smoothing=0.1),
        optimizer=Optimization(
            lr=lr, weight_decay=0.05, clip=0, layer_decay=0.75 if large else 0.65
        ),
        schedule=Schedule(warmup=5, final_lr=1e-6 / lr),
        epochs=50 if large else 100,
        batch=1024,
    )


def tokenizer(model: str = "dVAE/8") -> Recipe:
    """A discrete VAE for BEiT's targets, of lucidrains/DALLE-pytorch's shape, trained as DALL-E's.

    From DALL-E (Ramesh et al., 2021, appendix A.2): AdamW, weight decay 1e-4, weights averaged by
    0.999, a temperature that falls from 1 to 1/16 by a cosine. From DALLE-pytorch: the squared
    error, 20 epochs, crops of at least 75% of the image. Learning rate and weight of the divergence
    are ours, from short runs on CIFAR-10: without the divergence fewer codes are used, and with
    DALL-E's 6.6 the squared error is higher.
    """
    return Recipe(
        recipe="tokenizer",
        model=model_part(model),
        pretext=Pretext(task="tokenizer", kl_weight=1.0),
        augment=Augment(area=0.75, flip=True),
        optimizer=Optimization(lr=3e-3, weight_decay=1e-4),
        schedule=Schedule(warmup=1),
        average=Average(ema=0.999),
        epochs=20,
        batch=64,
    )


def dino(model: str = "ViT-S/16") -> Recipe:
    """DINO (Caron et al., 2021) on ImageNet in 100 epochs: two large crops and eight small ones.

    Values are those of the paper's code (facebookresearch/dino) for ViT-S/16: AdamW, lr 5e-4 per
    256 images, 10 epochs of warm-up, clipping at 3, stochastic depth to 0.1, momentum from 0.996.
    Its weight decay grows from 0.04 to 0.4 by a cosine. Here it stays the same, and 0.1 is our
    choice. The released ViT-S/16 took 800 epochs, ten small crops of 5% to 25%, large ones from
    25%, and a teacher's temperature of 0.07: `--epochs 800 --local-crops 10 --local-area 0.05 0.25
    --area 0.25 --teacher-temperature 0.04 0.07`.
    """
    return Recipe(
        recipe="dino",
        model=_of_crops(model),
        pretext=Pretext(task="dino"),
        augment=Augment(
            area=0.4,
            flip=True,
            color_jitter=0.4,
            saturation_jitter=0.2,
            hue_jitter=0.1,
            jitter_probability=0.8,
            grayscale=0.2,
            blur=1.0,
            solarize=0.2,
        ),
        optimizer=Optimization(lr=2e-3, weight_decay=0.1, clip=3.0),
        schedule=Schedule(warmup=10, final_lr=1e-6 / 2e-3),
        epochs=100,
        batch=1024,
    )


def lejepa(model: str = "ViT-S/16") -> Recipe:
    """LeJEPA (Balestriero and LeCun, 2025, arXiv 2511.08544): two large crops and six small ones.

    Values are those of the authors' page for small data (MINIMAL.md, Imagenette): AdamW, lr 2e-3
    at batch 256, decay 0.05, one epoch of warm-up, a cosine to half of the rate, stochastic depth
    to 0.1, weight 0.02, 256 slices, and its augmentation. It takes four crops of one size, and 800
    epochs. Small crops beside two large ones are the paper's; their number, areas and 200 epochs
    are our choice.
    """
    return Recipe(
        recipe="lejepa",
        model=_of_crops(model),
        pretext=Pretext(task="lejepa", local_crops=6, local_area=(0.05, 0.3)),
        augment=Augment(
            area=0.3,
            flip=True,
            color_jitter=0.8,
            hue_jitter=0.2,
            jitter_probability=0.8,
            grayscale=0.2,
            blur=0.5,
            solarize=0.2,
        ),
        optimizer=Optimization(lr=2e-3, weight_decay=0.05, clip=0.0),
        schedule=Schedule(warmup=1, final_lr=0.5),
        epochs=200,
        batch=256,
    )


def visreg(model: str = "ViT-S/16") -> Recipe:
    """VISReg (Wu et al., 2026, arXiv 2606.02572): LeJEPA with another regularizer.

    Values are those of its code for Imagenette: lr 1e-3 down to a thousandth, clipping at 1, weight
    0.6. It has batches of 64 and 4,096 slices; the crops are those of `lejepa`.
    """
    recipe = lejepa(model)
    return replace(
        recipe,
        recipe="visreg",
        pretext=replace(recipe.pretext, regularizer="visreg", regularizer_weight=0.6),
        optimizer=replace(recipe.optimizer, lr=1e-3, clip=1.0),
        schedule=replace(recipe.schedule, final_lr=1e-3),
    )


def _of_crops(model: str) -> ModelPart:
    """Return the model of a task that compares crops: a ViT with stochastic depth up to 0.1."""
    depth = {"drop_path": 0.1, "drop_path_ramp": True} if kind_of(model) is ViTConfig else {}
    return model_part(model, interpolation="bicubic", **IMAGENET, **depth)


def continued(recipe: Recipe) -> Recipe:
    """Return the recipe of a task for trained weights, which its rate for random ones would ruin.

    They learn at a twentieth of it, each block at 0.75 of the next one's rate; a projector or
    decoder, which begins anew, keeps the whole rate, and learns alone in the first fifth of the
    run. DINO is held by a Gram anchor of DINOv3's weight; numbers start from a ridge regression.
    Our choice; tried on photographs of hands (docs/pretrain.md).
    """
    if recipe.pretext.task in ("classify", "segment", "tokenizer"):
        return recipe
    full = recipe.optimizer.lr
    task = recipe.pretext
    slow = replace(recipe.optimizer, lr=full / 20, head_lr=full, head_first=0.2, layer_decay=0.75)
    held = replace(task, anchor=2.0) if task.task == "dino" else task
    if task.task == "regress":
        recipe = replace(recipe, start=replace(recipe.start, head_start="probe"))
    return replace(recipe, optimizer=slow, pretext=held)


def detect(model: str = SCENES) -> Recipe:
    """Object detection by learned queries in the last blocks (EoMT), with DETR's losses.

    AdamW with weight decay 1e-4 is DETR's (Carion et al., 2020); the other values are ours. The
    model is one for the embedded digit scenes, 48x48 gray: 92.8% AP50 in 6.5 minutes of one core.
    For photographs name trained weights: `--from facebook/dinov2-small`. Their rate, a twentieth of
    that of queries and heads, was not tuned.
    """
    small = {"image_size": 48, "pool": "mean", "positions": "sincos"} if model == SCENES else {}
    usual = model in (SCENES, "")
    scenes: dict[str, Any] = {"object_queries": 16, "query_blocks": 2} if usual else {}
    return Recipe(
        recipe="detect",
        data=Data(data="digit-scenes") if usual else Data(),
        # boxes are shares of the whole image
        model=model_part(model, fit="squash", crop=1.0, **small),
        augment=Augment(flip=True),
        pretext=Pretext(task="detect", **scenes),
        optimizer=Optimization(lr=1e-3, weight_decay=1e-4, clip=1.0),
        schedule=Schedule(warmup=0.5),
        epochs=8,
        batch=32,
    )


def regress(model: str = SCENES) -> Recipe:
    """Numbers of images, the columns that `--targets` names, by their squared error.

    AdamW and a cosine, as in `small`, without an average of the weights and without flips, which
    would move what is measured. The model is one for the embedded digit scenes, 48x48 gray. For
    photographs name a model or trained weights, `--from facebook/dinov2-small`, which learn at a
    twentieth of the rate; that was not tuned.
    """
    small = {"image_size": 48, "pool": "mean", "positions": "sincos"}
    return Recipe(
        recipe="regress",
        model=model_part(model, **(small if model == SCENES else {})),
        objective=ObjectivePart(loss="l2"),
        pretext=Pretext(task="regress"),
        optimizer=Optimization(lr=1e-3, weight_decay=0.05),
        schedule=Schedule(warmup=0.5),
        epochs=10,
        batch=64,
    )


def segment(model: str = "") -> Recipe:
    """The class of each pixel, from a run of `vitlab probe --task segment`, whose head learns on.

    AdamW, a cosine after a short warm-up, crops and flips; `--tune last` trains two blocks alone.
    """
    return Recipe(
        recipe="segment",
        model=model_part(model),
        augment=Augment(area=0.25, flip=True),
        pretext=Pretext(task="segment"),
        optimizer=Optimization(lr=1e-4, weight_decay=0.05, clip=1.0),
        schedule=Schedule(warmup=1),
        epochs=20,
        batch=16,
    )


PRETRAINING = (masked_patch, beit, mae, tokenizer, dino, lejepa, visreg, detect, regress, segment)
AFTERWARD = (beit_finetune, mae_finetune)  # fine-tuning of what was learned so
