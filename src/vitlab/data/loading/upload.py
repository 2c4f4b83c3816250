"""Batches on their way to the device that trains, while it is still busy with the step before."""

import torch
from torch import Tensor

from vitlab.data.loading.batches import Batch
from vitlab.models.packed import Packed


class Upload:
    """Copies batches to a GPU on a stream of its own; on a CPU, batches stay as they are.

    Steps are queued without waiting for them, so the copy of the next batch, from pinned memory,
    runs beside the step before. What is queued afterward waits for the copy; the host does not.

    Args:
        device: that trains
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device."""
        if self.stream is None:
            return batch
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            moved = batch.to(self.device)
        computing.wait_stream(self.stream)
        for tensor in tensors_of(moved):
            if tensor.device.type != "cpu":  # memory of the other stream, which this one reads
                tensor.record_stream(computing)
        return moved


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch and of its further views."""
    fields = [field for view in (batch, *batch.views) for field in vars(view).values()]
    plain = [field.patches if isinstance(field, Packed) else field for field in fields]
    return [each for each in plain if isinstance(each, Tensor)]
