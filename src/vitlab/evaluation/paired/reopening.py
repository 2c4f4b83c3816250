"""The data of a run, opened again as the run used it."""

from vitlab.data.learning import splits_of
from vitlab.data.partition import partitioned
from vitlab.data.sources.splits import Splits, fingerprint, with_validation
from vitlab.errors import DataError
from vitlab.runs.run_folder import RunFolder


def reopened(folder: RunFolder) -> Splits:
    """Return the splits of a run's data: its test images, and all it could have learned from.

    Raises:
        DataError: the data is no longer there, or has changed since.
        RunError: `run.toml` is damaged.
    """
    recipe = folder.recipe
    options = recipe.data
    splits = splits_of(options)
    splits = partitioned(splits, options)
    if recipe.patience:
        splits = with_validation(splits)
    if fingerprint(splits.whole or splits.train) != folder.fingerprint:
        raise DataError(f"{options.data} has changed since the run was trained")
    return splits
