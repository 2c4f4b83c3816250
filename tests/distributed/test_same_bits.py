"""Three processes that are killed and resumed give the bits of three that are not."""

from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import vitlab
from conftest import BRIEF, TINY
from distributed.ranks import on_ranks
from steps import killed_before
from vitlab.distributed.launch import joined
from vitlab.distributed.parallel import must_settle, one_pass
from vitlab.distributed.sync_norm import synchronize
from vitlab.optim.sam import statistics_kept
from vitlab.recipes.recipe import Host

STEPS = TINY | {"steps": 4, "batch": 24, "test_every": 1.0, "warmup": 0.0, "lr": 3e-3}


def rank(folder: Path, stop: int, micro: int) -> None:
    """One process of a run that is killed before a step (0: never)."""
    with killed_before(stop) if stop else nullcontext(), suppress(KeyboardInterrupt):
        recipe = vitlab.recipe("digits", **STEPS | {"micro_batch": micro, "drop_path": 0.1})
        host = Host(workers=0, checkpoint_every=0, check_duplicates="no", effort=BRIEF)
        vitlab.train(recipe, folder, resume=True, host=host)


def killed_and_resumed(size: int, micro: int, stops: list[int], place: Path) -> None:
    for name, each in (("whole", [0]), ("cut", [*stops, 0])):
        for stop in each:
            for said in on_ranks(size, partial(rank, place / name, stop, micro), place):
                assert "value" in said, said.get("trace", said)
    whole, cut = (vitlab.load(place / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_killed_and_resumed_with_three_processes(tmp_path: Path) -> None:
    killed_and_resumed(3, 7, [2], tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("micro", [0, 7])
def test_killed_before_every_step(size: int, micro: int, tmp_path: Path) -> None:
    killed_and_resumed(size, micro, [1, 2, 3], tmp_path)


def kept() -> list[float]:
    """Running statistics of a batch norm after a pass that is to leave none."""
    with joined("cpu", 60) as (world, _):
        model = nn.Sequential(nn.BatchNorm2d(2))
        synchronize(model)
        with statistics_kept(model):
            model(torch.randn(3, 2, 4, 4) + world.rank)
        shared = DistributedDataParallel(model)
        assert not must_settle(shared, world)  # a sum of two has one order
        for last in (False, True):  # gradients are exchanged in the last pass alone
            with one_pass(shared, last=last, counts=True):
                assert shared.require_backward_grad_sync == last
        mean = model[0].running_mean
        assert isinstance(mean, torch.Tensor)
        return mean.tolist()


def test_passes_that_leave_no_statistics(tmp_path: Path) -> None:
    assert [said.get("value") for said in on_ranks(2, kept, tmp_path)] == [[0.0, 0.0]] * 2
