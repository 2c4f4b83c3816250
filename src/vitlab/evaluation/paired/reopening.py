"""The data of a run, opened again as the run used it."""

from dataclasses import replace

from vitlab.data.holdout import fingerprint, moved, partitioned, with_validation, without
from vitlab.data.learning import splits_of
from vitlab.data.sources.splits import Splits
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
    found = folder.duplicates or {}
    splits = replace(splits, test=without(splits.test, found.get("seen_test", ())))
    if recipe.patience:
        splits = with_validation(splits, options.split_by)
    splits = moved(splits, found.get("moved", {}))
    if fingerprint(splits.whole or splits.train, folder.fingerprint) != folder.fingerprint:
        raise DataError(f"{options.data} has changed since the run was trained")
    return splits
