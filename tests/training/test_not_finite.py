"""Steps that are not finite: skipped, gone back from, and the same in a resumed run."""

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from conftest import BRIEF, LIGHT, TINY, call
from distributed.ranks import on_ranks
from steps import each_step
from training.kept import EACH, SMALLEST, journal, killed, outcome, stopped
from vitlab.errors import DivergedError
from vitlab.recipes.recipe import Decisions, Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints, plan
from vitlab.training.guard import Figures, can_skip, take_step
from vitlab.training.rollback import IN_A_ROW, ROLLBACKS
from vitlab.training.state import RunState, Tally
from vitlab.training.step import Trainer

QUICK = SMALLEST | {"steps": 16, "batch": 16, "lr": 1e-3, "test_every": 0.5}
RECIPE = vitlab.recipe("digits", **QUICK)
HMLP = {"model": "ViT(width=16,depth=1,heads=2,mlp=16)/8", "stem": "hmlp", "image_size": 16}
NAN, INF, SPIKE = math.nan, math.inf, 1e9
FIRST = 4
SEVERAL = dict.fromkeys(range(FIRST, FIRST + IN_A_ROW), NAN)
FAULTS = SEVERAL | {9: INF}


@contextmanager
def injected(faults: dict[int, float], rank: int = 0) -> Iterator[None]:
    """Within the context, one process multiplies its pixels before these steps (from 0)."""
    handles: list[Any] = []

    def before(trainer: Trainer, state: RunState, batch: object) -> None:
        value = faults.get(state.step)
        if value is not None and trainer.world.rank == rank:
            stem: Any = state.model.get_submodule("stem")
            spoil = lambda module, args: (args[0] * value, *args[1:])  # noqa: E731
            handles.append(stem.register_forward_pre_hook(spoil))

    def after(trainer: Trainer, state: RunState, batch: object) -> None:
        for handle in handles:
            handle.remove()

    with each_step(before, after):
        yield


def run(folder: Path, faults: dict[int, float], every: float = 60, **how: Any) -> dict[str, Any]:
    """A run, or the rest of one; its figures."""
    with injected(faults):
        host = replace(EACH, checkpoint_every=every)
        recipe = RECIPE.changed(**how)
        return vitlab.train(recipe, folder, resume=True, host=host).metrics


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has gone back once, and saved a checkpoint after each step."""
    folder = tmp_path_factory.mktemp("returned") / "whole"
    run(folder, FAULTS, 0)
    return folder


# One step


@pytest.mark.parametrize(("late", "bad", "place"), [(False, NAN, 0), (True, INF, 2)])
def test_a_step_that_is_not_finite_changes_nothing(late: bool, bad: float, place: int) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    assert can_skip(optimizer)
    assert not can_skip(torch.optim.SGD(model.parameters(), lr=0.1))
    numbers, start = torch.ones(3, dtype=torch.float64), [t.clone() for t in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    assert take_step(optimizer, numbers, late)
    before = [t.clone() for t in model.parameters()]
    assert not any(map(torch.equal, before, start))
    moments = [t.clone() for s in optimizer.state.values() for t in s.values()]
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, bad)
    numbers[place] = bad
    assert take_step(optimizer, numbers, late) is late  # the host does not know yet
    after = [t for s in optimizer.state.values() for t in s.values()]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, moments, after))


def test_figures_name_what_is_not_finite() -> None:
    numbers = torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64)
    figures = Figures(4, 8, numbers)
    assert figures.sums == {"loss": 3.0, "correct": 2.0, "images": 8.0}
    assert (figures.loss, float(figures.numbers[-1]), figures.fault) == (3.0, 0.5, "")
    for place, fault in ((0, "loss"), (1, "correct"), (2, "gradient")):
        broken = numbers.clone()
        broken[place] = -INF if place else NAN
        assert Figures(4, 8, broken, late=True).fault == fault


def test_a_batch_of_damaged_images_says_nothing_of_the_weights() -> None:
    tally, numbers = Tally(), torch.tensor([8.0, 1.0, 0.5], dtype=torch.float64)
    for step, images in enumerate((0, 4, 4), 1):
        assert not tally.add(Figures(step, images, numbers * (images > 0)))
    assert (tally.smooth, tally.lowest, tally.sound) == (2.0, 2.0, 2)


def test_read_late_a_run_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LINES", 6)
    reads: dict[bool, list[int]] = {False: [], True: []}
    runs = []
    for late in (False, True):

        def read_late(trainer: Trainer, state: RunState, batch: object, late: bool = late) -> None:
            trainer.late = late
            reads[late].append(state.tally.seen)

        with each_step(before=read_late):
            recipe = vitlab.recipe("digits", **SMALLEST | {"steps": 12, "batch": 8})
            runs.append(vitlab.train(recipe, tmp_path / str(late), host=LIGHT))
    # of the two steps between lines, the first is counted while the second runs
    assert reads[False][:5] == [0, 8, 16, 24, 32]
    assert reads[True][:5] == [0, 0, 16, 16, 32]
    assert outcome(runs[0]) == outcome(runs[1])


@pytest.mark.parametrize(
    ("late", "fault", "value"),
    [(False, "loss", NAN), (True, "gradient", INF), (False, "gradient", 3e38)],
)  # the last overflows in the norm
def test_a_fault_leaves_weights_moments_average_and_statistics(
    late: bool, fault: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, dict[str, Tensor]] = {}
    real = Trainer.clip

    def look(trainer: Trainer, state: RunState, batch: object) -> None:
        trainer.late = late
        seen[state.step] = {n: t.clone() for n, t in state.checkpoint().tensors.items()}

    def poisoned(self: Trainer) -> Tensor:
        if max(seen, default=0) in (4, 9) and fault == "gradient":
            grad = next(w.grad for w in self.model.parameters() if w.grad is not None)
            grad.view(-1)[:9] = value
        return real(self)

    monkeypatch.setattr(Trainer, "clip", poisoned)
    with each_step(before=look):
        faults = {4: value, 9: value} if fault == "loss" else {}
        done = run(tmp_path / "run", faults, 0, **HMLP)
    assert (done["skipped_steps"], done["rollbacks"]) == (2, 0)
    lines = journal(tmp_path / "run", "skipped")
    assert [(line["step"], line["fault"]) for line in lines] == [(5, fault), (10, fault)]
    for step, tensors in seen.items():
        assert all(t.isfinite().all() for t in tensors.values()), step
    for step in (4, 9):
        for name, before in seen[step].items():
            moved = late and name.startswith("average.")  # it takes the same weights in once more
            moved = moved or (fault == "gradient" and name.rpartition(".")[0].endswith("norm"))
            assert moved or torch.equal(before, seen[step + 1][name]), name
    assert any("2 of 16 steps skipped" in note for note in done["notes"])
    found, remarks = checkpoints.load(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert not remarks
    assert all(tensor.isfinite().all() for tensor in found.tensors.values())


def test_a_spike_is_no_fault_but_is_clipped_to_an_ordinary_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, moves = Trainer.clip, list[tuple[float, float]]()

    def spiked(self: Trainer) -> Tensor:
        grads = [w.grad for w in self.model.parameters() if w.grad is not None]
        if len(moves) == 12:
            torch._foreach_mul_(grads, 1e12)
        norm = real(self)
        moves.append((norm.item(), torch.nn.utils.get_total_norm(grads).item()))
        return norm

    monkeypatch.setattr(Trainer, "clip", spiked)
    assert run(tmp_path / "run", {3: SPIKE})["skipped_steps"] == 0
    assert moves[12][0] > 1e9
    assert max(after for _, after in moves) <= 1.0 + 1e-4


# Several steps in a row


@pytest.mark.parametrize("every", [0, 60])
def test_after_several_in_a_row_it_goes_back_and_so_does_a_resumed_run(
    every: float, returned: Path, tmp_path: Path
) -> None:
    """With a checkpoint after each step to the last one that proved good, else to the start.

    The weights after step 4 have only met faults: they are not known to be good.
    """
    host, whole = replace(EACH, checkpoint_every=every), returned
    if every:
        whole = tmp_path / "whole"
        run(whole, FAULTS, every)
    done = RunFolder(whole).result()
    assert done is not None
    first, last = FIRST - 1 if every == 0 else 0, FIRST + IN_A_ROW
    assert done["rollbacks"] == 1
    assert done["skipped_steps"] == last - first + 1
    decided = RunFolder(whole).decisions
    assert decided == Decisions(micro_batch=16, rollbacks=((first, last),))
    (line,) = journal(whole, "rollback")
    assert (line["step"], line["to"]) == (last, first)
    steps = [each["step"] for each in journal(whole, "train")]
    assert steps == [*range(1, first + 1), *range(last + 1, 10), *range(11, 17)]
    with injected(FAULTS):
        for stop in (5, 8):
            killed(stop, RECIPE, tmp_path / "cut", host)
    run(tmp_path / "cut", FAULTS, every)
    assert outcome(tmp_path / "cut") == outcome(whole)


def test_stopped_between_faults_or_without_its_checkpoints_it_goes_on_where_it_went_on(
    returned: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    with injected(FAULTS):
        stopped(6, RECIPE, cut)
        newest = checkpoints.places(cut / "checkpoints")[0]
        assert newest.name.endswith("6")  # two faults old
        lost = shutil.copytree(cut, tmp_path / "lost")
        killed(10, RECIPE, lost)
        shutil.rmtree(lost / "checkpoints")
    run(cut, FAULTS, 0)
    run(lost, {9: INF}, 0)  # the batches skipped need not be bad any more
    assert outcome(cut) == outcome(returned) == outcome(lost)


def test_it_gives_up_in_the_end(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(2, 20), NAN)
    with pytest.raises(DivergedError) as caught:
        run(tmp_path / "run", faults, 0, steps=40)  # of 20 steps, the third would undo most
    last = 2 + (ROLLBACKS + 1) * IN_A_ROW
    assert str(caught.value) == (
        f"non-finite loss at step {last}, after {ROLLBACKS} rollbacks to earlier weights: "
        "try a lower lr=, as with resume=True change=True lr=0.0001"
    )
    assert len(RunFolder(tmp_path / "run").decisions.rollbacks) == ROLLBACKS


@pytest.mark.parametrize(("steps", "third", "to"), [(26, 19, 18), (30, 12, 0), (28, 12, 11)])
def test_a_rollback_goes_further_back_until_the_run_has_recovered(
    steps: int, third: int, to: int, tmp_path: Path
) -> None:
    """The second time at once; the third time unless there were as many good steps as were undone.

    Or if most of the run would be lost.
    """
    faults = dict.fromkeys([*range(2, 5), *range(6, 9), *range(third, third + IN_A_ROW)], NAN)
    run(tmp_path / "run", faults, 0, steps=steps)
    rollbacks = RunFolder(tmp_path / "run").decisions.rollbacks
    assert rollbacks == ((1, 5), (0, 9), (to, third + IN_A_ROW))


# A loss that explodes


@contextmanager
def enlarged(times: float, steps: range) -> Iterator[None]:
    """Within the context, the losses of some steps (from 1) are so many times as large."""
    real = Trainer.step

    def larger(self: Trainer, state: RunState, *rest: Any) -> Figures:
        figures = real(self, state, *rest)
        return replace(figures, numbers=figures.numbers * (times if state.step in steps else 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", larger)
        yield


def test_a_good_checkpoint_is_kept_while_the_newest_are_not(tmp_path: Path) -> None:
    """Three steps with twenty times the loss: not enough to go back for, and not good."""
    seen: dict[int, list[int]] = {}

    def look(trainer: Trainer, state: RunState, batch: object) -> None:
        places = checkpoints.places(tmp_path / "run" / "checkpoints")
        seen[state.step] = [int(each.name[5:]) for each in places]

    with enlarged(20, range(6, 9)), each_step(before=look):
        assert run(tmp_path / "run", {}, 0)["rollbacks"] == 0
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
        for stop in (8, 9):
            killed(stop, RECIPE, tmp_path / "cut")
        run(tmp_path / "cut", {}, 0)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


WORDS = ["train", "digits", "--batch", "32", "--workers", "0", "--report", "no", "--clip", "0"]
WORDS += ["--model", TINY["model"], "--check-duplicates", "no"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--optimizer sgd --lr 100 --steps 24 --test-every 9", "the loss exploded from 2."),
        ("--lr 1e30 --steps 14 --warmup 0", "as with --resume --change --lr 0.001"),
    ],
)
def test_the_advice_after_a_divergence_works(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--checkpoint-every", "0", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, *WORDS, *options.split(), *out)
    assert (code, said in err) == (2, True), err
    advice = re.search(r"try a lower --lr, as with (--resume --change --lr \S+)", err)
    assert advice is not None
    lower = advice[1].split()
    code, _, err = call(capsys, "train", *out, lower[0], *lower[2:])
    assert (code, "or pass --change to continue with it" in err) == (2, True)
    code, table, err = call(capsys, "train", *out, *lower)
    assert (code, "rollback" in err, "diverge" in table) == (0, False, False)
    assert re.search(r"until step \d+, lr=0.001 from there on", err)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"steps": 6}, "at step 4, after 0 rollbacks to earlier weights"),  # of most of its batches
        ({"steps": 2}, r"diverged with lr=1e\+30; start again with a lower"),  # in its last step
    ],
)
def test_a_run_that_has_diverged_leaves_no_model(
    how: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DivergedError, match=said):
        run(tmp_path / "run", {}, lr=1e30, clip=0.0, warmup=0.0, **how)
    assert not (tmp_path / "run" / "model").exists()
    if how["steps"] == 2:
        assert all(line["accuracy"] == 0 for line in journal(tmp_path / "run", "test"))


def together(folder: Path) -> dict[str, Any]:
    """One process of two; the second one's images are bad."""
    with injected({1: NAN} | SEVERAL, rank=1):
        return vitlab.train(RECIPE, folder, host=EACH).metrics


def test_all_processes_pass_over_the_same_steps(tmp_path: Path) -> None:
    for each in on_ranks(2, partial(together, tmp_path / "run"), tmp_path):
        assert "value" in each, each.get("trace", each)
        assert each["value"]["skipped_steps"] == 1 + 1 + IN_A_ROW  # and step 4, the last good one
        assert each["value"]["rollbacks"] == 1


def test_a_task_tells_of_no_collapse_where_every_step_was_skipped(tmp_path: Path) -> None:
    tiny = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/2", "mean": 0.5, "std": 0.5}
    own = {"batch": 16, "warmup": 0, "steps": 1, "prototypes": 16, "local_crops": 0}
    recipe = vitlab.recipe("dino", "digits", **tiny | own)
    host = Host(workers=0, check_duplicates="no", device="cpu", effort=BRIEF)
    with injected({0: NAN}), pytest.raises(DivergedError, match="in 1 of 1 steps"):
        vitlab.train(recipe, tmp_path / "run", host=host)
