"""The jobs of a study, in the order that their needs allow, several at once if asked for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Self

from vitlab.data.learning import OpenedData
from vitlab.experiments.side_by_side import SideBySide
from vitlab.studies.jobs import FAILED, Figures, Job
from vitlab.studies.one_run import Work, perform


class Workers:
    """Performs works in this process, or several at once in others.

    Args:
        at_once: works at the same time; one is done in this process, with all its threads
        threads: of each process, if there are several
    """

    def __init__(self, at_once: int, threads: int = 1) -> None:
        self.at_once, self._stack = at_once, ExitStack()
        self._others = SideBySide(_perform, threads, "--at-once 1") if at_once > 1 else None

    def all(
        self,
        jobs: Sequence[Job],
        done: dict[str, Figures],
        work_of: Callable[[Job], Work],
    ) -> Iterator[tuple[Job, Figures]]:
        """Perform jobs, each as soon as those that it needs are done; yield each with its figures.

        What is not performed has no figures: a run after one that diverged, and one for a further
        learning rate where none is needed.

        Args:
            jobs: in the order in which they are preferred
            done: figures by the names of jobs, to which those of these are added
            work_of: makes the work of a job whose needs are done

        Raises:
            RunError: a process died.
            UserError: as `vitlab.train`, except that a run diverged.
            KeyboardInterrupt: a stop was asked for; what was begun can be continued.
        """
        waiting = [job for job in jobs if job.name not in done]
        running: dict[str, Job] = {}
        while waiting or running:
            ready = (job for job in waiting if all(name in done for name in job.needs))
            while len(running) < self.at_once and (job := next(ready, None)):
                waiting = [other for other in waiting if other is not job]
                failed = [name for name in job.models if FAILED in done[name]]
                if failed or (job.further and not job.factor(done)):
                    done[job.name] = {FAILED: f"{failed[0]} did"} if failed else {}
                    yield job, done[job.name]
                elif self._others is None:
                    done[job.name] = _perform(work_of(job))
                    yield job, done[job.name]
                else:
                    self._others.begin(job.name, work_of(job))
                    running[job.name] = job
            if running and self._others is not None:
                name, done[name] = self._others.finished()
                yield running.pop(name), done[name]

    def __enter__(self) -> Self:
        """Return the workers."""
        if self._others is not None:
            self._stack.enter_context(self._others)
        return self

    def __exit__(self, *raised: object) -> None:
        """End the processes, which may save what they are doing first."""
        self._stack.close()


def _perform(work: Work) -> Figures:
    return perform(work, _opened())


@cache
def _opened() -> OpenedData:
    """Return what this process has opened."""
    return OpenedData()
