"""Whether a model can be replaced by its fast form without anybody noticing."""

import torch

from vitlab.models.create import MODEL_OF, build
from vitlab.models.model import Model


def can_accelerate(model: Model) -> bool:
    """Return whether a model is what its configuration says, and nothing more.

    Others compute as they are: models with adapters or hooks, wrapped, fused or accelerated ones,
    and those for images of different sizes. Its weights must be in fp32.
    """
    config = model.config
    if type(model) is not MODEL_OF[type(config)] or config.fit == "native":
        return False
    if any(each._forward_hooks or each._forward_pre_hooks for each in model.modules()):
        return False
    with torch.device("meta"):
        standard = build(config)
    kinds = [type(each) for each in standard.modules()]
    state = model.state_dict()
    return (
        [type(each) for each in model.modules()] == kinds
        and state.keys() == standard.state_dict().keys()
        and all(t.dtype == torch.float32 for t in state.values() if t.is_floating_point())
    )
