"""What a study leaves behind: its figures as JSON, its table, its picture, its page."""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from vitlab.files import write_text
from vitlab.report.drawings.drawing import standalone
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import Study
from vitlab.studies.grid.jobs import Job
from vitlab.studies.grid.outcome import Row, verdicts
from vitlab.studies.grid.runs.study_plan import Plan
from vitlab.studies.grid.shown.study_picture import pictures
from vitlab.studies.grid.shown.study_tables import as_json, claims_table, markdown, table_of
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.units import counted, duration, epochs, si


@dataclass(frozen=True)
class Setting:
    """How the runs of a study were made.

    Attributes:
        study: what was compared
        name: of the study
        base: what its arms are made from
        plan: their length
        jobs: all runs
        at_once: of them at the same time
        seconds: that timing and all runs took, as many at the same time
    """

    study: Study
    name: str
    base: Base
    plan: Plan
    jobs: Sequence[Job]
    at_once: int
    seconds: float

    @property
    def seeds(self) -> int:
        """Runs of each arm."""
        return len({job.seed for job in self.jobs})

    @property
    def predicted(self) -> float:
        """Seconds of the whole study on this device, those of timing included."""
        return self.plan.timing + self.plan.seconds(self.jobs, self.at_once)

    def _length(self) -> str:
        relative = {job.arm.recipe.epochs for job in self.jobs if not job.arm.recipe.steps}
        if self.base.paper or not relative:
            return ""
        lengths = [each * self.plan.epochs for each in (min(relative), max(relative))]
        low, high = map(epochs, lengths)
        return f"{low}, " if low == high else f"{low.split()[0]} to {high}, "

    def _model(self) -> str:
        """Return what all rows have in common, the rows saying the rest."""
        if self.base.paper:
            return ", the paper's recipes"
        models = {job.arm.recipe.model.model for job in self.jobs} - {""}
        return f", {models.pop()}" if len(models) == 1 else ""

    def lead(self) -> str:
        """Return how the runs were made, in a sentence or two."""
        recipe, plan = self.base.recipe, self.plan
        return (
            f"{self.study.source}. Data {recipe.data.data}{self._model()}: {self._length()}"
            f"{counted(self.seeds, 'seed')}, {si(plan.macs(self.jobs))} multiply-adds of training, "
            f"{duration(self.predicted)} predicted with {self.at_once} at once and "
            f"{duration(self.seconds)} taken. PyTorch "
            f"{torch.__version__} on {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}."
        )


def written(setting: Setting, rows: Sequence[Row], folder: CampaignFolder) -> dict[str, Any]:
    """Write `results.md`, its pictures, `report.html` and the result in JSON; return the result.

    The first picture is `picture.svg`, the next ones `picture-2.svg` and so on.

    Raises:
        DiskError: a file cannot be written.
    """
    study, place = setting.study, folder.path
    found = verdicts(study, rows)
    table, claims = table_of(study, rows), claims_table(study, found)
    drawings = pictures(study, rows, place)
    findings = list(study.findings(rows)) if study.findings else []
    command = folder.record.get("command", "")
    result = {
        "study": setting.name,
        "title": study.title,
        "data": setting.base.recipe.data.data,
        "seeds": setting.seeds,
        "epochs": setting.plan.epochs,
        "macs": setting.plan.macs(setting.jobs),
        "predicted_seconds": setting.predicted,
        "seconds": setting.seconds,
        "head": list(table[0]),
        "table": [list(line) for line in table[1]],
        "rows": list(rows),
        "claims": as_json(found),
        "findings": findings,
        "run": str(place),
        "report": str(folder.report),
    }
    text = f"# {study.title}\n\n{setting.lead()}\n\n`{command}`\n\n{markdown(*table)}\n"
    text += "".join(f"{each}\n\n" for each in (study.note, *findings) if each)
    if study.claims:
        text += markdown(*claims)
    for number, (title, drawing) in enumerate(drawings.items(), 1):
        name = "picture.svg" if number == 1 else f"picture-{number}.svg"
        write_text(place / name, standalone(drawing) + "\n")
        text += f"\n![{title}]({name})\n"
    write_text(place / "results.md", text)
    tables = [Table("Results", *table, note=study.note)]
    tables += [Table("Claims", *claims)] if study.claims else []
    shown = list(drawings.values())
    page = TablePage(study.title, setting.lead(), tables, shown, findings, command)
    write_tables(folder.report, page)
    folder.finish(json.loads(json.dumps(result)))
    return result
