"""Models around their tensors, and the names and shapes of the tensors of a configuration."""

from dataclasses import replace

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.create import MODEL_OF, assemble, resize_tensors, with_new_head
from vitlab.models.model import Model
from vitlab.weights.state import StateDict


def empty(config: ModelConfig) -> StateDict:
    """Return a model's state dict without memory: names, shapes and types."""
    return MODEL_OF[type(config)].empty(config)


def fitted(
    config: ModelConfig,
    tensors: StateDict,
    classes: int | None = None,
    image_size: Size | None = None,
    labels: tuple[str, ...] = (),
) -> Model:
    """Build a model around its tensors, with another head or image size if asked.

    Args:
        config: that the tensors belong to
        tensors: by name; taken over, not copied
        classes: outputs of a new classifier, which starts at zero (ViT paper, section 3.2)
        image_size: that the model is used at; positions stay as they are stored
        labels: names of the new classifier's classes

    Raises:
        OptionError: other numbers of names and classes; the model is limited to one image size.
    """
    new = config
    if classes is not None:
        new = config.with_classes(classes)
        new = replace(new, labels=labels) if labels else new
        tensors = with_new_head(tensors, new)
    if image_size is not None:
        old = new
        new = new.sized(image_size)
        tensors = resize_tensors(tensors, old, new)
    return assemble(new, tensors)


def whole_state(model: Model) -> StateDict:
    """Return every tensor of a model, without copies.

    Raises:
        WeightsError: the model is fused: its tensors are not those of its configuration.
    """
    tensors = model.state_dict()
    if tensors.keys() != empty(model.config).keys():
        if any("lora_" in name for name in tensors):
            raise WeightsError(
                "cannot save a model with adapters beside its weights: merge them first "
                "(model = peft_model.merge_and_unload())"
            )
        raise WeightsError("cannot save a fused model: save the model it was made from")
    return tensors
