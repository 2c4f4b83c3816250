"""Packages that a recipe needs beyond those that are always installed."""

from vitlab.optim.table import OPTIMIZERS
from vitlab.packages import check_installed
from vitlab.recipes.recipe import Recipe


def check_packages(recipe: Recipe) -> None:
    """Refuse a recipe whose packages are not installed, without importing them.

    Raises:
        PackageError: the first missing one; the message names the extra.
    """
    name = recipe.optimizer.optimizer
    if package := OPTIMIZERS[name].package:
        check_installed(package, f"optimizer={name}", "set optimizer=adamw")
