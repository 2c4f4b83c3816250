"""Fine-tuning with several processes: what one process learns, whole or in shards."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import BRIEF, fewer_digits
from distributed.ranks import on_ranks
from steps import asked_to_stop
from vitlab.errors import DeviceError
from vitlab.recipes.recipe import Host
from vitlab.training import trial_steps
from vitlab.training.session import Session
from vitlab.training.stop import Interrupted

CHOICES: dict[str, Any] = {"steps": 4, "batch": 20, "lr": 3e-3, "ema": 0.5, "drop_path": 0.0}
# validation images without a fitted classifier that could be kept; shards refuse patience
CALIBRATED: dict[str, Any] = {"patience": 9, "head_start": "zero", "steps": 40, "lr": 3e-2}


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> None:
    """All of them: some are held out for a temperature."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=32)/4", 7, 8, channels=1, stem_norm="batch",
        mean=0.5, std=0.5, generator=generator,
    )  # fmt: skip
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)
    return vitlab.save(model, tmp_path_factory.mktemp("base") / "model")


def tune(folder: Path, base: Path, mode: str, shard: bool, more: dict[str, Any]) -> float:
    host, choices = Host(workers=0, shard=shard, effort=BRIEF), CHOICES | more
    return vitlab.finetune("digits", base, folder, mode, host=host, **choices).metrics["nll"]


def resumed(folder: Path, base: Path, *, short: bool) -> float:
    recipe = vitlab.recipe("finetune", "digits", weights=str(base), **CHOICES)
    with pytest.MonkeyPatch.context() as patch:
        if short:
            patch.setattr(trial_steps, "try_steps", out_of_memory)
        return vitlab.train(
            recipe, folder, resume=True, host=Host(workers=0, effort=BRIEF)
        ).metrics["nll"]


def out_of_memory(session: Session) -> None:
    raise session.world.shared(DeviceError("out of memory"))


def test_two_processes_go_on_from_a_fitted_head_and_remove_nothing(
    base: Path, tmp_path: Path
) -> None:
    with fewer_digits():
        with asked_to_stop(1), pytest.raises(Interrupted):
            resumed(tmp_path / "run", base, short=False)
        files = sorted((tmp_path / "run").iterdir())
        said = on_ranks(2, partial(resumed, tmp_path / "run", base, short=True), tmp_path)
        assert [each["error"] for each in said] == ["out of memory"] * 2
        assert sorted((tmp_path / "run").iterdir()) == files
        said = on_ranks(2, partial(resumed, tmp_path / "run", base, short=False), tmp_path)
    assert len({each.get("value", each.get("trace")) for each in said}) == 1, said


@pytest.mark.parametrize(("mode", "shard"), [("lora", True), ("head", False)])
def test_two_processes_learn_what_one_does(
    base: Path, tmp_path: Path, mode: str, shard: bool
) -> None:
    alone = tmp_path / "alone"
    more = {} if shard else CALIBRATED
    with fewer_digits() if shard else nullcontext():
        tune(alone, base, mode, False, more)
        said = on_ranks(2, partial(tune, tmp_path / "two", base, mode, shard, more), tmp_path)
    for each in said:
        assert "value" in each, each.get("trace", each)
    one, two = (vitlab.load(folder).state_dict() for folder in (alone, tmp_path / "two"))
    frozen = vitlab.load(base).state_dict()
    for name, tensor in two.items():
        torch.testing.assert_close(tensor, one[name], rtol=0, atol=5e-4)
        kept = tensor.shape == frozen[name].shape and torch.equal(one[name], frozen[name])
        assert not kept or torch.equal(tensor, frozen[name]), name
    assert (tmp_path / "two" / "delta.safetensors").is_file()
    temperatures = [vitlab.load(folder).temperature for folder in (alone, tmp_path / "two")]
    assert temperatures[1] == pytest.approx(temperatures[0], rel=0.05)
    assert shard or 1 not in temperatures
