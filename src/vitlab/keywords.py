"""Keyword arguments of the public functions, as editors and type checkers know them.

Each is an option by its own name and type. The file is made from the options by
`tests/typed/keywords.py`, and a test proves the two equal; `vitlab.options` checks the values.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class ModelKeywords(TypedDict, total=False):
    """Fields of any kind of model."""

    channels: int
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: Literal["bilinear", "bicubic"]
    crop: float
    fit: Literal["crop", "squash", "native"]
    center: Literal["round", "floor"]
    tokens: int
    zero_head: bool
    head_bias: float
    width: int
    depth: int
    heads: int
    mlp: int
    branches: int
    patch: int
    stem: Literal["conv", "hmlp", "linear", "local", "resnet", "tubelet"]
    stem_norm: Literal["none", "batch", "layer"]
    stem_act: Literal["none", "gelu"]
    stem_bias: bool
    stem_stride: int
    stem_frames: int
    stages: Sequence[int]
    resnet: Literal["google", "timm"]
    positions: Literal[
        "1d", "1d+bias", "1d+rope", "2d", "bias", "none", "relative", "rope", "sincos"
    ]
    positions_at: Literal["stem", "every", "shared"]
    bias_locality: float
    positions_size: int | tuple[int, int] | None
    resampling: Literal[
        "bilinear",
        "bicubic",
        "antialiased",
        "scaled",
        "bilinear-antialiased",
        "bilinear-unaligned",
        "nearest",
    ]
    norm: Literal["layer", "rms"]
    norm_order: Literal["before", "after"]
    norm_inner_attention: bool
    norm_inner_mlp: bool
    pre_norm: bool
    class_token: bool | None
    pool: Literal["token", "mean", "both", "prefix", "prefix-mean", "attention"]
    norm_at: Literal["tokens", "pooled", "both", "none"]
    queries: int
    pool_heads: int
    pool_mlp: int
    pool_prefix: bool
    pool_tokens: Sequence[int]
    pre_logits: int | Literal[True]
    registers: int
    layer_scale: float
    drop_path: float
    drop_path_ramp: bool
    attention: Literal["global", "axial", "none"]
    dropout: float
    qkv_bias: bool
    bias: bool
    qk_norm: bool
    ffn: Literal["mlp", "swiglu"]
    gelu: Literal["exact", "tanh", "quick"]
    norm_eps: float
    rope_kind: Literal["image", "grid"]
    rope_base: float
    rope_rounded: bool
    rope_grid: int
    rope_offset: float
    widen: int
    form: Literal["dvae", "dalle"]
    stride: int
    codes: int
    code_width: int
    decoder: bool
    laplace: bool


class CreateKeywords(ModelKeywords, total=False):
    """What `create` and `load` take."""

    labels: Sequence[str]


class DataKeywords(ModelKeywords, total=False):
    """Data, what the model sees and says, the seed."""

    precision: Literal["auto", "fp32", "bf16", "bf16-pure"]
    seed: int
    path_column: str
    label_column: Sequence[str]
    label_separator: str
    split_column: str
    images: str
    class_folder: Literal["auto", "outer", "inner"]
    group_column: str
    allow_outside: bool
    annotation_frame: Literal["auto", "upright", "stored"]
    cache_data: str
    cache_gb: float
    test_fraction: float
    dev_share: float
    drop_duplicates: bool
    fold: str
    train_images: int | float
    weights_name: str
    weights_part: str
    weights_drop: Sequence[str]
    last_blocks: int
    image_size: int | tuple[int, int] | None
    classes: int | None
    targets: str


class ProbeKeywords(DataKeywords, total=False):
    """What `probe` takes."""

    task: Literal["classify", "segment", "regress"]
    by: Literal["auto", "logistic", "ridge", "means"]
    layers: int
    folds: int
    class_names: str
    ignore: int | Literal["none"] | None
    concat: int
    scale: float


class StudyKeywords(DataKeywords, total=False):
    """What `study` takes."""

    model: str
    batch: int
    micro_batch: int | Literal["auto"]
    test_every: float
    patience: int
    head_start: Literal["zero", "probe", "random"]
    lora_rank: int
    lora_alpha: float
    lora_targets: Literal["attention", "ffn", "all"]
    area: float
    aspect: float
    flip: bool
    rotate: float
    shift: float
    zoom: float
    shear: float
    rand_ops: int
    rand_magnitude: float
    rand_std: float
    rand_limit: float
    rand_probability: float
    rand_increasing: bool
    three_augment: bool
    color_jitter: float
    saturation_jitter: float | None
    hue_jitter: float
    jitter_probability: float
    grayscale: float
    blur: float
    solarize: float
    erase: float
    mixup: float
    cutmix: float
    mix_switch: float
    repeats: int
    augment_interpolation: Literal["bilinear", "bicubic"]
    bce_threshold: float | None
    label_smoothing: float
    balance: Literal["none", "auto", "weights", "sampling", "focal"]
    weight_beta: float
    focal_gamma: float
    task: Literal[
        "classify",
        "segment",
        "detect",
        "regress",
        "masked-patch",
        "tokenizer",
        "beit",
        "mae",
        "dino",
        "lejepa",
    ]
    mask_ratio: float
    target: Literal["mean-color", "downsized", "pixels"]
    tokenizer: str
    min_block: int
    decoder_width: int
    decoder_depth: int
    decoder_heads: int
    normalize_pixels: bool
    temperature: tuple[float, float]
    kl_weight: float
    local_crops: int
    local_size: int
    local_area: tuple[float, float]
    anchor: float
    prototypes: int
    head_width: int
    bottleneck: int
    momentum_teacher: float
    student_temperature: float
    teacher_temperature: tuple[float, float]
    centering: Literal["mean", "sinkhorn"]
    freeze_last: float
    embedding: int
    regularizer: Literal["sigreg", "visreg"]
    regularizer_weight: float
    slices: int
    object_queries: int
    query_blocks: int
    mask_queries: int
    teacher: str
    distill: Literal["hard", "soft"]
    distill_token: bool
    distill_weight: float
    distill_temperature: float
    optimizer: Literal[
        "sgd",
        "adam",
        "adamw",
        "adafactor",
        "lamb",
        "lars",
        "shampoo",
        "soap",
        "muon",
        "schedule-free",
    ]
    lr: float
    head_lr: float | None
    head_first: float
    weight_decay: float
    betas: tuple[float, float]
    momentum: float
    eps: float
    clip: float
    layer_decay: float
    rho: float
    precondition_every: int
    schedule: Literal["cosine", "linear", "constant", "rsqrt", "steps"]
    drops: tuple[float, float, float]
    warmup: float
    warmup_steps: int
    final_lr: float
    timescale: int
    cooldown: float
    ema: float
    ema_warmup: bool


class FinetuneKeywords(StudyKeywords, total=False):
    """What `finetune` takes."""

    epochs: float
    steps: int
    budget: str


class RecipeKeywords(FinetuneKeywords, total=False):
    """What `recipe` takes."""

    weights: str
    tune: Literal["all", "attention", "ffn", "head", "last", "norms", "lora"]
    loss: Literal["softmax", "bce", "sigmoid", "l2", "huber", "gaussian"]
