"""Several runs, one after the other, in the folder of their campaign."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab.data.learning import OpenedData
from vitlab.distributed.launch import joined
from vitlab.errors import DivergedError, UserError
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.progress import say
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import Run
from vitlab.training.run import train
from vitlab.training.setup.whereabouts import placed
from vitlab.training.step.transform import Transform
from vitlab.transfer.campaign_folder import CampaignFolder


@dataclass(frozen=True)
class Trial:
    """One run of a campaign.

    Attributes:
        name: of its folder
        recipe: what it learns; it can be repeated by hand
        title: what the progress line calls it
    """

    name: str
    recipe: Recipe
    title: str


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: a finished run, or the message about its divergence."""

    trial: Trial
    folder: RunFolder
    run: Run | None
    diverged: str = ""


@dataclass(frozen=True)
class Parts:
    """What every run of a campaign has besides its recipe, as `vitlab.train` takes it."""

    start: Model | None = None
    transform: Transform | None = None
    loss: Loss | None = None


@dataclass(frozen=True)
class Campaign:
    """Runs with one purpose in one folder.

    Attributes:
        kind: what it is, in one word
        folder: gets a run folder per trial
        host: where to train
        command: what the user typed
        first: whether this process writes and reports, of those that torchrun started
        parts: what every run has besides its recipe
        opened: the data, which every run has in common
    """

    kind: str
    folder: CampaignFolder
    host: Host
    command: str
    first: bool
    parts: Parts = Parts()
    opened: OpenedData = field(default_factory=OpenedData)

    def outcomes(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        """Train, yielding each outcome; finished runs are not repeated, begun ones go on.

        Args:
            trials: in their order

        Raises:
            UserError: as `vitlab.train`, except that a run diverged.
            KeyboardInterrupt: a stop was asked for; the state is saved.
        """
        known = dict(self.folder.record["diverged"]) if self.folder.started else {}
        for number, trial in enumerate(trials, 1):
            folder = self.folder.run(trial.name)
            self.say(f"run {number} of {len(trials)}: {trial.title}")
            message = known.get(trial.name, "")
            run = None
            if not message:
                try:
                    run = self.train(trial.recipe, folder)
                except DivergedError as error:
                    message = str(error)
                    if self.first:
                        self.folder.note_divergence(trial.name, message)
                except UserError:
                    if self.first and number == 1 and not folder.started:
                        self.folder.withdraw()
                    raise
            if message:
                self.say(f"{trial.title} diverged: {message}")
            yield Outcome(trial, folder, run, message)

    def train(self, recipe: Recipe, folder: RunFolder) -> Run:
        """Train one run, or continue it."""
        return train(
            recipe,
            folder.path,
            start=self.parts.start,
            resume=folder.started,
            host=self.host,
            transform=self.parts.transform,
            loss=self.parts.loss,
            opened=self.opened,
            command=self.command,
        )

    def say(self, text: str) -> None:
        """Print a message for the user, once for all processes."""
        if self.first:
            say(text)


def campaign_place(
    out: str | Path | None, name: Path, *, resume: bool, host: Host | None = None
) -> Path:
    """Return the folder of several runs: the given one, or one of a name (see `placed`)."""
    host = host or Host()
    with joined(host.device, host.timeout) as (world, _), world.agreed():
        return placed(out, name, resume=resume, world=world)


def begin(
    kind: str,
    folder: CampaignFolder,
    settings: dict[str, Any],
    recipe: Recipe,
    parts: Parts = Parts(),
    *,
    resume: bool,
    host: Host | None = None,
    command: str = "",
) -> Campaign:
    """Start or continue a campaign.

    Args:
        kind: what it is, in one word
        folder: its place
        settings: what may not change when it is continued, as JSON values
        recipe: that it varies, which may not change either
        parts: what every run has besides its recipe
        resume: continue the campaign in the folder; start it if there is none
        host: where to train
        command: what the user typed

    Raises:
        RunError: the folder is in the way, or its campaign was started otherwise.
        DiskError: it cannot be written to.
    """
    host = host or Host()
    with joined(host.device, host.timeout) as (world, _):
        with world.agreed():
            if world.first:
                if resume and not folder.started:
                    say(f"no {kind} in {folder.path} yet: starting it")
                folder.begin(kind, settings, recipe, resume or world.restarted, command)
        return Campaign(kind, folder, host, command, world.first, parts)
