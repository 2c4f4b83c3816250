"""Looking inside a model: plain functions of a model and a batch, each returning arrays."""

from vitlab.inspect.cka import cka
from vitlab.inspect.curvature.curvature import curvature
from vitlab.inspect.curvature.hessian import hessian_eigenvalues, hessian_product, hessian_trace
from vitlab.inspect.curvature.landscape import loss_line, loss_surface
from vitlab.inspect.curvature.mean_loss import MeanLoss
from vitlab.inspect.curvature.sharpness import gradient_norm, noise_increase, sharpness
from vitlab.inspect.curvature.spectrum import hessian_spectrum
from vitlab.inspect.explaining.gradcam import gradcam
from vitlab.inspect.explaining.occlusion import occlusion
from vitlab.inspect.explaining.relevance import relevance
from vitlab.inspect.feature_colors import feature_colors
from vitlab.inspect.heads import attention_distance, attention_entropy
from vitlab.inspect.looking_heads import class_attention
from vitlab.inspect.patch_maps import norm_map, similar_patches
from vitlab.inspect.position_similarity import position_similarity
from vitlab.inspect.principal_filters import embedding_filters
from vitlab.inspect.receptive_field import receptive_field
from vitlab.inspect.rollout import late_attention, rollout
from vitlab.inspect.through_depth import token_norms, token_similarity

__all__ = [
    "MeanLoss",
    "attention_distance",
    "attention_entropy",
    "cka",
    "class_attention",
    "curvature",
    "embedding_filters",
    "feature_colors",
    "gradcam",
    "gradient_norm",
    "hessian_eigenvalues",
    "hessian_product",
    "hessian_spectrum",
    "hessian_trace",
    "late_attention",
    "loss_line",
    "loss_surface",
    "noise_increase",
    "norm_map",
    "occlusion",
    "position_similarity",
    "receptive_field",
    "relevance",
    "rollout",
    "sharpness",
    "similar_patches",
    "token_norms",
    "token_similarity",
]
