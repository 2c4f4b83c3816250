"""The tensors of a model: all of them, by name, of the model inside of what wraps it."""

from torch import Tensor, nn

from vitlab.errors import WeightsError
from vitlab.models.model import Model

StateDict = dict[str, Tensor]


def fits(tensor: Tensor, want: Tensor) -> bool:
    """Return whether a tensor can stand for another: of its shape and kind, in any precision."""
    alike = tensor.is_floating_point() == want.is_floating_point()
    return alike and tensor.shape == want.shape


def unwrapped(model: nn.Module) -> Model:
    """Return the model inside of what other libraries wrap around one.

    Those of `torch.compile`, `DistributedDataParallel`, `DataParallel` and `vitlab.adapters` are
    taken off.

    Raises:
        WeightsError: it is in another wrapper, or not a model of ViTLab; the message says what
            would work.
    """
    inner: object = model
    while not isinstance(inner, Model):
        kind = type(model).__name__
        if hasattr(inner, "merge_and_unload"):  # peft
            raise WeightsError(
                f"the model is a {kind} with adapters beside its weights: pass "
                "model.merge_and_unload()"
            )
        found = [getattr(inner, name, None) for name in ("_orig_mod", "module", "model")]
        inner = next((each for each in found if isinstance(each, nn.Module)), None)
        if inner is None:
            raise WeightsError(f"a {kind} is not a model of ViTLab: pass the model inside of it")
    return inner
