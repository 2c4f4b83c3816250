"""The surface of transformers' models for image classification around one of ours.

Importing this file tells transformers of it: its Auto classes then open what the surface and
`vitlab.save` wrote.
"""

from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import ImageClassifierOutput

from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.weights.formats.own_names import VERSION
from vitlab.weights.identity import described, description


class ViTLabConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not followed
    """A configuration of ours in transformers' form.

    `config.json` then holds the keys of both, so that `vitlab.load` reads what `Trainer` saves.
    """

    model_type = "vitlab"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a config.json, also one of `vitlab.save`, which has no keys of transformers."""
        own = config_of(described(config_dict, {})).to_dict()
        return super().from_dict(own | config_dict, **kwargs)


def config_of(config: ModelConfig) -> ViTLabConfig:
    """Return one of our configurations in transformers' form."""
    names = config.labels or tuple(f"LABEL_{number}" for number in range(config.classes))
    rows, columns = config.size
    return ViTLabConfig(
        format=VERSION,
        **description(config),
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        image_size=rows if rows == columns else [rows, columns],
        num_channels=config.channels,
        hidden_size=config.features,
        architectures=["ViTLabForImageClassification"],
    )


class ViTLabForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """One of our models as transformers' `Trainer` takes it.

    Args:
        config: from `config_of`
        model: the one to wrap; None for weights that `from_pretrained` fills in
    """

    config_class = ViTLabConfig
    config: ViTLabConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True

    def __init__(self, config: ViTLabConfig, model: Model | None = None) -> None:
        super().__init__(config)
        self.model = build(described(config.to_dict(), {})) if model is None else model
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Compute the buffers that are not stored; the weights are the model's or the file's."""
        if not isinstance(module, Model) and callable(refresh := getattr(module, "refresh", None)):
            refresh()

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Compute logits, and the loss if there are labels.

        Args:
            pixel_values: normalized images, (B, channels, H, W)
            labels: classes (B,), or 0 and 1 for several labels (B, classes), as floats
            output_hidden_states: return what enters and leaves each block, (B, N, D)
            output_attentions: return attention maps, (B, heads, N, N)
            return_dict: False for a tuple
        """
        model = self.model
        with recomputed(model, self.gradient_checkpointing and self.training):
            logits = model(pixel_values)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        hidden = None
        if output_hidden_states:
            hidden = tuple(model.intermediates(pixel_values, range(model.config.blocks + 1)))
        output = ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=hidden,
            attentions=tuple(model.attention_maps(pixel_values)) if output_attentions else None,
        )
        return output.to_tuple() if return_dict is False else output


AutoConfig.register("vitlab", ViTLabConfig)
for auto in (AutoModel, AutoModelForImageClassification):
    auto.register(ViTLabConfig, ViTLabForImageClassification)
