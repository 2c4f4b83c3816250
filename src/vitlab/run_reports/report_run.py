"""The report of a run that has ended: the one function for what was trained, fitted or resumed."""

from dataclasses import replace

from vitlab.errors import RunError
from vitlab.evaluation.compute import borrowed
from vitlab.evaluation.records import RunRecord
from vitlab.progress import named_if_slow
from vitlab.runs.run_folder import RunFolder
from vitlab.training.outcome import ClassifierTest, ObjectiveTest, Outcome, Run, SegmenterTest
from vitlab.training.stop import Stop


def report_run(outcome: Outcome) -> Run:
    """Write the report of a run, if it is to have one, and return the run, which names it.

    A stop that is asked for meanwhile ends nothing: that takes seconds.

    Raises:
        RunError: the run folder was removed, or another process holds it.
        DiskError: the report cannot be written; resuming the run writes it.
    """
    run = outcome.run
    test = outcome.test
    if test is None:
        return run
    folder = RunFolder(run.folder)
    if not folder.started:
        raise RunError(f"{run.folder} was removed before its report was written")
    with Stop() as stop, folder.locked():
        stop.message = "interrupted before the report was written: pass --resume to write it"
        _write(folder, run, test)
    return replace(run, metrics=RunRecord(run.metrics | folder.places))


def _write(
    folder: RunFolder, run: Run, test: ClassifierTest | SegmenterTest | ObjectiveTest
) -> None:
    """Draw the report, on the device that has tested the model; what draws is slow to import."""
    model = run.model
    figures = run.metrics
    notes = figures["notes"]
    match test:
        case ClassifierTest(splits, predictions, compute):
            from vitlab.report.gather import survey, write_report

            with named_if_slow("drawing the report"), borrowed(model, compute.where):
                counts = survey(splits)
                write_report(folder, model, splits.test, predictions, figures, notes, counts)
        case SegmenterTest(segmenter, images, tested, compute):
            from vitlab.report.segment_page import write_segmented

            write_segmented(folder, segmenter, images, tested, figures, compute)
        case ObjectiveTest(pictures, pixels):
            from vitlab.report.pretext_report import write_pretext_report
            from vitlab.report.segment_page import segment_sections

            sections = []
            if pixels is not None:
                sections = segment_sections(
                    pixels.segmenter, pixels.images, pixels.tested, pixels.compute
                )
            write_pretext_report(folder, model, figures, pictures, notes, sections)
