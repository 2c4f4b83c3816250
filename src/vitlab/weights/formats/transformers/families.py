"""Every family of transformers that is read or written, by its model_type."""

from vitlab.weights.formats.transformers.family import Family
from vitlab.weights.formats.transformers.records.dino_records import DINOV2, DINOV3, REGISTERS, TIPS
from vitlab.weights.formats.transformers.records.tower_records import (
    AIMV2,
    AIMV2_OWN,
    CLIP,
    IDEFICS,
    NAFLEX,
    OF_CLIP,
    SIGLIP,
)
from vitlab.weights.formats.transformers.records.vit_records import (
    BEIT,
    DATA2VEC,
    DEIT,
    IJEPA,
    INTERN,
    INTERN_OWN,
    MAE,
    MSN,
    VIT,
    VITPOSE,
)

# Models are written as the first of these that fits them.
WRITTEN = (BEIT, DINOV3, CLIP, SIGLIP, DEIT, VIT, MSN, IJEPA, DINOV2, REGISTERS)
READ_ONLY = (MAE, DATA2VEC, TIPS, NAFLEX, AIMV2, *OF_CLIP, *IDEFICS, INTERN, VITPOSE)
FAMILIES: dict[str, Family] = {family.model_type: family for family in (*WRITTEN, *READ_ONLY)}
# By a model_type that only their authors' own code has, not transformers.
OF_AUTHORS: dict[str, Family] = {"aimv2": AIMV2_OWN, "intern_vit_6b": INTERN_OWN}
