"""The packages that the optimizers of a study need, asked for before anything runs."""

from collections.abc import Sequence

from vitlab.optim.table import OPTIMIZERS
from vitlab.packages import check_installed
from vitlab.studies.grid.design import Arm


def check_packages(arms: Sequence[Arm], every: Sequence[Arm]) -> None:
    """Refuse arms whose optimizers are of packages that are not installed.

    Args:
        arms: that are to be trained
        every: all arms of the study, from which other rows are advised

    Raises:
        PackageError: it says how to install one, and which rows need none.
    """
    free = " ".join(arm.name for arm in every if arm.row and not _package(arm))
    for arm in arms:
        if package := _package(arm):
            instead = f"name other rows: --only {free}" if free else ""
            check_installed(package, f"the row {arm.name}", instead)


def _package(arm: Arm) -> str:
    return OPTIMIZERS[arm.recipe.optimizer.optimizer].package
