"""Looking inside a model: plain functions of a model and a batch, each returning arrays.

`look.py` comes first: one captured pass, from which attention, tokens and the rest are computed.
"""

from vitlab.inspect.attention import (
    attention_distance,
    attention_elsewhere,
    attention_entropy,
    class_attention,
    late_attention,
    rollout,
)
from vitlab.inspect.evidence import gradcam, relevance
from vitlab.inspect.look import Look, look
from vitlab.inspect.tokens import (
    feature_colors,
    norm_map,
    similar_patches,
    token_norms,
    token_similarity,
)
from vitlab.inspect.weights import embedding_filters, position_similarity, receptive_field

__all__ = [
    "Look",
    "attention_distance",
    "attention_elsewhere",
    "attention_entropy",
    "class_attention",
    "embedding_filters",
    "feature_colors",
    "gradcam",
    "late_attention",
    "look",
    "norm_map",
    "position_similarity",
    "receptive_field",
    "relevance",
    "rollout",
    "similar_patches",
    "token_norms",
    "token_similarity",
]
