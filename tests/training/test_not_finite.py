"""Steps that are not finite: skipped, gone back from, and the same in a resumed run."""

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from conftest import TINY, call
from distributed.ranks import on_ranks
from steps import asked_to_stop, each_step, killed_before
from vitlab.errors import DivergedError
from vitlab.recipes.decisions import Decisions
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints
from vitlab.training.guard import Figures
from vitlab.training.rollback import IN_A_ROW, ROLLBACKS
from vitlab.training.state import State
from vitlab.training.step import Trainer

QUICK = TINY | {"steps": 20, "batch": 32, "lr": 1e-3, "test_every": 0.2}
HMLP = {"model": "ViT(width=16,depth=1,heads=2,mlp=16)/8", "stem": "hmlp", "image_size": 16}
NAN, INF, SPIKE = math.nan, math.inf, 1e9


@contextmanager
def injected(faults: dict[int, float], rank: int = 0) -> Iterator[list[State]]:
    """Within the context, one process multiplies its pixels before these steps (from 0)."""
    handles: list[Any] = []
    states: list[State] = []

    def before(trainer: Trainer, state: State, batch: object) -> None:
        states[:] = [state]
        value = faults.get(state.step)
        if value is None or trainer.world.rank != rank:
            return

        def spoil(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (args[0] * value, *args[1:])

        stem: Any = state.model.get_submodule("stem")
        handles.append(stem.register_forward_pre_hook(spoil))

    def after(trainer: Trainer, state: State, batch: object) -> None:
        for handle in handles:
            handle.remove()

    with each_step(before, after):
        yield states


def run(folder: Path, faults: dict[int, float], every: float = 60, **how: Any) -> dict[str, Any]:
    """A run, or the rest of one; its figures."""
    with injected(faults):
        host = Host(workers=0, check_duplicates="no", checkpoint_every=every)
        recipe = vitlab.recipe("digits", **QUICK | how)
        return vitlab.train(recipe, folder, resume=True, host=host).metrics


def kept(folder: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The trained weights of a run, and its journal without times and places."""
    clocks = ("seconds", "images_per_second", "peak_memory", "run", "report")
    lines = RunFolder(folder).journal.read()
    journal = [{key: line[key] for key in line if key not in clocks} for line in lines]
    return vitlab.load(folder).state_dict(), journal


def same(ours: Path, theirs: Path) -> None:
    (weights, journal), (other, lines) = kept(ours), kept(theirs)
    assert all(torch.equal(weights[name], other[name]) for name in other)
    assert journal == lines


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in RunFolder(folder).journal.read() if line["kind"] == kind]


@pytest.mark.parametrize(("value", "late"), [(NAN, False), (INF, True), (-INF, False)])
def test_a_fault_leaves_weights_moments_average_and_statistics(
    late: bool, value: float, tmp_path: Path
) -> None:
    seen: list[tuple[int, dict[str, Tensor]]] = []

    def look(trainer: Trainer, state: State, batch: object) -> None:
        trainer.late = late
        tensors = state.checkpoint().tensors
        seen.append((state.step, {name: t.clone() for name, t in tensors.items()}))

    with each_step(before=look):
        done = run(tmp_path / "run", {4: value, 9: value}, **HMLP)
    assert done["skipped_steps"] == 2
    assert done["rollbacks"] == 0
    lines = of_kind(tmp_path / "run", "skipped")
    assert [(line["step"], line["fault"]) for line in lines] == [(5, "loss"), (10, "loss")]
    for step, tensors in seen:
        assert all(t.isfinite().all() for t in tensors.values()), step
    states = dict(seen)
    for step in (4, 9):
        for name, before in states[step].items():
            moved = late and name.startswith("average.")  # it takes the same weights in once more
            assert moved or torch.equal(before, states[step + 1][name]), name
    assert any("2 of 20 steps skipped" in note for note in done["notes"])


def test_a_spike_is_no_fault_but_is_bounded(tmp_path: Path) -> None:
    done = run(tmp_path / "run", {3: SPIKE})
    assert done["skipped_steps"] == 0
    assert all(t.isfinite().all() for t in vitlab.load(tmp_path / "run").state_dict().values())


@pytest.mark.parametrize("every", [0, 60])
def test_after_several_in_a_row_it_goes_back_and_so_does_a_resumed_run(
    every: float, tmp_path: Path
) -> None:
    """With a checkpoint after each step to the last one that proved good, else to the start.

    The weights after step 6 have only met faults: they are not known to be good.
    """
    faults = dict.fromkeys(range(6, 6 + IN_A_ROW), NAN) | {11: INF}
    done = run(tmp_path / "whole", faults, every)
    first = 5 if every == 0 else 0
    assert done["rollbacks"] == 1
    assert done["skipped_steps"] == 6 + IN_A_ROW - first + 1
    decided = RunFolder(tmp_path / "whole").decisions
    assert decided == Decisions(micro_batch=32, rollbacks=((first, 6 + IN_A_ROW),))
    (line,) = of_kind(tmp_path / "whole", "rollback")
    assert (line["step"], line["to"]) == (6 + IN_A_ROW, first)
    steps = [each["step"] for each in of_kind(tmp_path / "whole", "train")]
    assert steps == [*range(1, first + 1), *range(7 + IN_A_ROW, 12), *range(13, 21)]
    for stop in (7, 9, 10, 13):
        with injected(faults), killed_before(stop), suppress(KeyboardInterrupt):
            host = Host(workers=0, check_duplicates="no", checkpoint_every=every)
            recipe = vitlab.recipe("digits", **QUICK)
            vitlab.train(recipe, tmp_path / "cut", resume=True, host=host)
    run(tmp_path / "cut", faults, every)
    same(tmp_path / "cut", tmp_path / "whole")


def test_stopped_between_faults_it_goes_back_as_far(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(6, 6 + IN_A_ROW), NAN)
    run(tmp_path / "whole", faults, 0)
    with asked_to_stop(8), suppress(KeyboardInterrupt):
        run(tmp_path / "cut", faults, 0)
    newest = checkpoints.places(tmp_path / "cut" / "checkpoints")[0]
    assert newest.name.endswith("8")  # two faults old
    run(tmp_path / "cut", faults, 0)
    same(tmp_path / "cut", tmp_path / "whole")


def test_from_an_older_checkpoint_it_goes_on_where_it_went_on(tmp_path: Path) -> None:
    """The newest checkpoints are lost: the rollback comes again where it came before."""
    faults = dict.fromkeys(range(6, 6 + IN_A_ROW), NAN)
    run(tmp_path / "whole", faults, 0)
    with injected(faults), killed_before(12), suppress(KeyboardInterrupt):
        recipe = vitlab.recipe("digits", **QUICK)
        vitlab.train(
            recipe,
            tmp_path / "cut",
            host=Host(workers=0, check_duplicates="no", checkpoint_every=0),
        )
    shutil.rmtree(tmp_path / "cut" / "checkpoints")
    run(tmp_path / "cut", {}, 0)  # the batches skipped need not be bad any more
    same(tmp_path / "cut", tmp_path / "whole")


def test_it_gives_up_in_the_end(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(2, 20), NAN)
    with pytest.raises(DivergedError) as caught:
        run(tmp_path / "run", faults, 0, steps=40)  # of 20 steps, the third would undo most
    last = 2 + (ROLLBACKS + 1) * IN_A_ROW
    assert str(caught.value) == (
        f"non-finite loss at step {last}, after {ROLLBACKS} rollbacks to earlier weights: "
        "try a lower --lr, as with --resume --change --lr 0.0001"
    )
    assert len(RunFolder(tmp_path / "run").decisions.rollbacks) == ROLLBACKS


EXPLODING = ["train", "digits", "--optimizer", "sgd", "--lr", "100", "--clip", "0", "--steps", "60"]
EXPLODING += ["--batch", "32", "--workers", "0", "--test-every", "9", "--report", "no"]
EXPLODING += ["--model", TINY["model"], "--check-duplicates", "no"]


@pytest.mark.parametrize("every", ["0", "60"])
def test_the_advice_after_a_divergence_works(
    every: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--checkpoint-every", every, "--out", str(tmp_path / "run")]
    code, _, said = call(capsys, *EXPLODING, *out)
    assert code == 2
    assert "the loss exploded from 2.3" in said  # it is finite: nothing is skipped for it
    advice = re.search(r"as with (--resume --change --lr \S+)", said.splitlines()[-1])
    assert advice is not None
    code, table, said = call(capsys, "train", *out, *advice[1].split())
    assert (code, "rollback" in said) == (0, False)
    assert "diverge" not in table


@pytest.mark.parametrize(("steps", "third", "to"), [(100, 40, 39), (100, 25, 0), (50, 25, 24)])
def test_a_rollback_goes_further_back_until_the_run_has_recovered(
    steps: int, third: int, to: int, tmp_path: Path
) -> None:
    """The second time at once; the third time unless there were as many good steps as were undone.

    Or if most of the run would be lost.
    """
    faults = dict.fromkeys([*range(8, 11), *range(12, 15), *range(third, third + IN_A_ROW)], NAN)
    run(tmp_path / "run", faults, 0, steps=steps)
    rollbacks = RunFolder(tmp_path / "run").decisions.rollbacks
    assert rollbacks == ((7, 11), (0, 15), (to, third + IN_A_ROW))


@contextmanager
def enlarged(times: float, steps: range) -> Iterator[None]:
    """Within the context, the losses of some steps (from 1) are so many times as large."""
    real = Trainer.step

    def larger(self: Trainer, state: State, *rest: Any) -> Figures:
        figures = real(self, state, *rest)
        return replace(figures, numbers=figures.numbers * (times if state.step in steps else 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", larger)
        yield


def test_a_good_checkpoint_is_kept_while_the_newest_are_not(tmp_path: Path) -> None:
    """Three steps with twenty times the loss: not enough to go back for, and not good."""
    seen: dict[int, list[int]] = {}

    def look(trainer: Trainer, state: State, batch: object) -> None:
        places = checkpoints.places(tmp_path / "run" / "checkpoints")
        seen[state.step] = [int(each.name[5:]) for each in places]

    with enlarged(20, range(6, 9)), each_step(before=look):
        done = run(tmp_path / "run", {}, 0)
    assert done["rollbacks"] == 0
    assert {step: seen[step] for step in (5, 6, 8, 9, 10)} == {
        5: [5, 4],
        6: [6, 5, 4],  # the weights after step 5 gave the first large loss
        8: [8, 7, 4],
        9: [9, 8, 4],
        10: [10, 9],
    }


def test_a_run_goes_back_from_an_exploded_loss_and_so_does_a_resumed_one(tmp_path: Path) -> None:
    """What decides is in the checkpoints: the lowest loss, and which weights proved good."""
    with enlarged(1000, range(8, 8 + IN_A_ROW)):
        done = run(tmp_path / "whole", {}, 0)
        assert (done["rollbacks"], done["skipped_steps"]) == (1, 2 + IN_A_ROW - 1)
        assert RunFolder(tmp_path / "whole").decisions.rollbacks == ((6, 10),)
        for stop in (7, 8, 9, 12):
            with killed_before(stop), suppress(KeyboardInterrupt):
                run(tmp_path / "cut", {}, 0)
        run(tmp_path / "cut", {}, 0)
    same(tmp_path / "cut", tmp_path / "whole")


def test_a_run_that_would_pass_over_most_of_its_batches_has_diverged(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="at step 4, after 0 rollbacks to earlier weights"):
        run(tmp_path / "run", {}, lr=1e30, clip=0.0, warmup=0.0, steps=6)


def together(folder: Path) -> dict[str, Any]:
    """One process of two; the second one's images are bad."""
    faults = {2: NAN} | dict.fromkeys(range(6, 6 + IN_A_ROW), NAN)
    host = Host(workers=0, check_duplicates="no", checkpoint_every=0)
    with injected(faults, rank=1):
        return vitlab.train(vitlab.recipe("digits", **QUICK), folder, host=host).metrics


def test_all_processes_pass_over_the_same_steps(tmp_path: Path) -> None:
    said = on_ranks(2, partial(together, tmp_path / "run"), tmp_path)
    for each in said:
        assert "value" in each, each.get("trace", each)
        assert each["value"]["skipped_steps"] == 1 + 1 + IN_A_ROW  # and step 6, the last good one
        assert each["value"]["rollbacks"] == 1


def test_a_run_that_diverges_in_its_last_step_leaves_no_model(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"steps": 2, "lr": 1e30, "clip": 0.0, "warmup": 0.0})
    with pytest.raises(DivergedError, match=r"diverged with lr=1e\+30; start again with a lower"):
        vitlab.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
    points = [line for line in RunFolder(tmp_path / "run").journal.read() if line["kind"] == "test"]
    assert all(line["accuracy"] == 0 for line in points)


def test_a_task_tells_of_no_collapse_where_every_step_was_skipped(tmp_path: Path) -> None:
    tiny = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/2", "mean": 0.5, "std": 0.5}
    own = {"batch": 16, "warmup": 0, "steps": 1, "prototypes": 16, "local_crops": 0}
    recipe = vitlab.recipe("dino", "digits", **tiny | own)
    host = Host(workers=0, check_duplicates="no", device="cpu")
    with injected({0: NAN}), pytest.raises(DivergedError, match="in 1 of 1 steps"):
        vitlab.train(recipe, tmp_path / "run", host=host)
