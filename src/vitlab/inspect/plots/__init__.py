"""A plot for each array of `vitlab.inspect`, of the same name: a figure of matplotlib.

    from vitlab.inspect import plots

    distance = vitlab.inspect.attention_distance(model, images)
    plots.attention_distance(distance, model.config.name).savefig("distance.svg")

Every function takes tensors or arrays, a title, and `dark=True` for a dark page. It is imported by
its own name, since matplotlib takes a moment.
"""

from vitlab.inspect.plots.charts import (
    attention_distance,
    attention_entropy,
    embedding_filters,
    position_similarity,
    through_depth,
    token_norms,
    token_similarity,
)
from vitlab.inspect.plots.overlays import (
    class_attention,
    feature_colors,
    gradcam,
    late_attention,
    norm_map,
    relevance,
    rollout,
    similar_patches,
)

__all__ = [
    "attention_distance",
    "attention_entropy",
    "class_attention",
    "embedding_filters",
    "feature_colors",
    "gradcam",
    "late_attention",
    "norm_map",
    "position_similarity",
    "relevance",
    "rollout",
    "similar_patches",
    "through_depth",
    "token_norms",
    "token_similarity",
]
