"""The papers' studies by name: what each shows (`studies.toml`), its rows, what is printed of them.

Nothing here imports PyTorch until a study is asked for.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from vitlab.by_name import load_object
from vitlab.errors import OptionError
from vitlab.studies.base import read
from vitlab.units import seconds

if TYPE_CHECKING:
    from vitlab.studies.claims import Claim
    from vitlab.studies.design import Study

USUAL_BUDGET = "10m"


STUDIES = read("studies")
ROWS: dict[str, str] = {
    "positions": "vitlab.studies.papers.architecture:ROWS",
    "data-size": "vitlab.studies.papers.pretraining:ROWS",
    "compute": "vitlab.studies.papers.pretraining:ROWS",
    "sgd-adam": "vitlab.studies.papers.pretraining:ROWS",
    "self-supervision": "vitlab.studies.papers.pretraining:ROWS",
    "features": "vitlab.studies.papers.pretraining:ROWS",
    "stems": "vitlab.studies.papers.three_things:ROWS",
    "shape": "vitlab.studies.papers.architecture:ROWS",
    "head": "vitlab.studies.papers.architecture:ROWS",
    "axial": "vitlab.studies.papers.architecture:ROWS",
    "parallel": "vitlab.studies.papers.three_things:ROWS",
    "tune": "vitlab.studies.papers.three_things:ROWS",
    "bias": "vitlab.studies.papers.advice:ROWS",
    "optimizers": "vitlab.studies.papers.advice:ROWS",
}
"""The tables, as "module:object", that have the functions of each study."""
ABOUT = "; ".join(f"{name}: {entry['about']}" for name, entry in STUDIES.items())


def claims_of(study: str) -> tuple["Claim", ...]:
    """Return the claims that a study tests."""
    from vitlab.studies.claims import Claim

    return tuple(Claim(**each) for each in STUDIES.get(study, {}).get("claims", ()))


def study_named(name: str) -> "Study":
    """Return a study by its name.

    Raises:
        OptionError: it is unknown.
    """
    from vitlab.studies.design import COLUMNS, Picture, Study, share_column

    if name not in STUDIES:
        raise OptionError(f"unknown study {name!r}: choose one of {', '.join(STUDIES)}")
    entry = STUDIES[name]
    rows: dict[str, Any] = load_object(ROWS[name])[name]
    shares = {key: share_column(key, title) for key, title in entry.get("shares", {}).items()}
    known = COLUMNS | shares
    return Study(
        entry["title"],
        entry["source"],
        tuple(entry["head"]),
        rows["arms"],
        tuple(known[key] for key in entry["columns"]),
        rows.get("measure"),
        claims_of(name),
        Picture(**entry.get("picture", {})),
        entry.get("note", ""),
        rows.get("findings"),
    )


def check_free(study: str, given: Collection[str]) -> None:
    """Refuse options that a study chooses itself.

    Args:
        study: its name; of one that is not the papers', only what every study chooses is refused
        given: names of options

    Raises:
        OptionError: the first of them.
    """
    if chosen := set(STUDIES.get(study, {}).get("varies", "").split()) & set(given):
        raise OptionError(f"the study {study} chooses {min(chosen)} itself: leave it out")
    if "steps" in given:
        raise OptionError("steps differs from row to row: set epochs")


def budget_seconds(budget: str, epochs: float) -> float:
    """Return the seconds of a budget, empty for the usual one; 0 for a given length.

    Raises:
        OptionError: it is no time, or a length is given beside it.
    """
    if budget and epochs:
        raise OptionError("budget and epochs exclude each other: set one of them")
    return 0.0 if epochs else seconds(budget or USUAL_BUDGET)
