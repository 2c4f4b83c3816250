"""Batches by number, as a data set of PyTorch."""

from torch.utils.data import Dataset

from vitlab.data.loading.batch import Batch


class Batches(Dataset[Batch]):
    """Batches by number: on a machine with a GPU, they come in pinned memory."""
