"""Many processes on one run: the same result, whatever their number, and nothing lost."""

import inspect
import itertools
import os
import shutil
import signal
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import vitlab
from conftest import BRIEF, TINY, environment, photo_folder
from distributed.ranks import on_ranks
from steady import PATIENCE, wait_until
from steps import asked_to_stop
from vitlab import __main__ as entry
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.order import ORDERS, Groups, Order
from vitlab.data.loading.parts import slice_of
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.data.sources import memory
from vitlab.distributed.launch import choose_device, joined, meet, read_environment
from vitlab.distributed.shares import passes
from vitlab.distributed.sync_norm import SyncBatchNorm, synchronize
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DeviceError, DiskError, OptionError
from vitlab.models.config import ViTConfig
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints, trial_steps
from vitlab.training.from_weights import check_guide
from vitlab.training.resolve import check_world
from vitlab.training.session import Session
from vitlab.training.state import pick
from vitlab.training.step import Trainer

PLAIN = TINY | {"epochs": 1, "batch": 74, "lr": 3e-3, "mixup": 0.5}  # four steps of few digits
CAMPAIGN = pytest.mark.campaign
TINY_8 = "ViT(width=32,depth=1,heads=2,mlp=64)/8"


def run(folder: Path, data: str = "digits", host: Host | None = None, **how: Any) -> str:
    """One process of a run; the first notes the gradient's norm at every step."""
    recipe = vitlab.recipe(*(("digits",) if data == "digits" else ("small", data)), **how)
    real = Trainer.clip

    def clip(self: Trainer) -> torch.Tensor:
        norm = real(self)
        if self.world.first:
            with folder.with_suffix(".norms").open("a") as file:
                file.write(f"{float(norm)}\n")
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "clip", clip)
        done = vitlab.train(recipe, folder, resume=True, host=host or Host(workers=0, effort=BRIEF))
    return str(done.metrics["accuracy"])


def same_norms(ours: Path, theirs: Path, rel: float) -> None:
    """Adam's steps would not tell a gradient from twice the gradient."""
    a, b = (each.with_suffix(".norms").read_text().split() for each in (ours, theirs))
    assert [float(each) for each in a] == pytest.approx([float(each) for each in b], rel=rel)


def curve(folder: Path) -> list[tuple[str, int, float, float]]:
    lines = RunFolder(folder).journal.read()
    return [(e["kind"], e["step"], e["loss"], e["accuracy"]) for e in lines if "step" in e]


def same_curves(ours: Path, theirs: Path) -> None:
    a, b = curve(ours), curve(theirs)
    assert [line[:2] for line in a] == [line[:2] for line in b]
    for mine, other in zip(a, b, strict=True):
        assert mine[2] == pytest.approx(other[2], rel=2e-5), mine
        assert mine[3] == pytest.approx(other[3], abs=1e-9), mine


def well(said: list[dict[str, Any]]) -> None:
    for each in said:
        assert "value" in each, each.get("trace", each)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    run(folder, **PLAIN)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by two processes with a slice of the model each, saved after each step."""
    folder = tmp_path_factory.mktemp("sharded") / "run"
    host = Host(workers=0, shard=True, checkpoint_every=0, effort=BRIEF)
    well(said := on_ranks(2, partial(run, folder, host=host, **PLAIN), folder.parent))
    assert len({each["value"] for each in said}) == 1
    return folder


def test_the_curve_does_not_depend_on_the_number_of_processes(
    alone: Path, sharded: Path, tmp_path: Path
) -> None:
    """74 images a step, in pairs that are mixed: three processes have 24, 24 and 26."""
    work = partial(run, tmp_path / "run", **PLAIN | {"micro_batch": 7})
    well(on_ranks(3, work, tmp_path))
    whole = vitlab.load(alone)
    for folder in (sharded, tmp_path / "run"):
        model = vitlab.load(folder)
        assert model.seen.tolist() == whole.seen.tolist() != []
        same_curves(folder, alone)
        same_norms(folder, alone, rel=1e-4)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, whole.state_dict()[name], rtol=0, atol=1e-3)
        assert len(list((folder / "checkpoints").iterdir())) <= checkpoints.KEEP
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6


def short_of_memory(folder: Path) -> list[Any]:
    """One process of a run whose second one has room for 11 images; return what it chose."""
    real, found = trial_steps._needed, list[tuple[float, float]]()

    def needed(session: Session, whole: int) -> tuple[float, float]:
        found.append(real(session, whole))
        return (0.0, 1e9) if session.world.rank else found[0]

    room = trial_steps.BESIDE + 11e9 * trial_steps.SLACK
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_steps, "PER_MAC", 10**9)
        patch.setattr(trial_steps, "_needed", needed)
        patch.setattr(trial_steps, "free_memory", lambda device: 2 * room / trial_steps.SHARE)
        few = {"micro_batch": "auto", "epochs": 0.2}
        run(folder, host=Host(workers=0, shard=True, effort=BRIEF), **PLAIN | few)
    return [RunFolder(folder).decisions.micro_batch, *found[0]]


def test_processes_agree_on_the_images_of_a_pass(tmp_path: Path) -> None:
    well(said := on_ranks(2, partial(short_of_memory, tmp_path / "run"), tmp_path))
    for each in said:
        micro, fixed, image = each["value"]
        assert micro == 5  # of 38, 19, 10, 5, …
        assert 1e4 < fixed < 1e6
        assert 1e3 < image < 1e5  # some kilobytes, measured in pages of four


def stopping(folder: Path, after: int, rank_that_asks: int, host: Host, **how: Any) -> str:
    """One process of a run of which one is asked to stop."""
    with asked_to_stop(after, rank_that_asks):
        return run(folder, host=host, **how)


def test_stopped_with_two_it_goes_on_with_one_or_three_in_shards_or_not(
    alone: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    for shard, after in ((True, 2), (False, 1)):
        host = Host(workers=0, shard=shard, effort=BRIEF)
        said = on_ranks(2, partial(stopping, first, after, 1, host, **PLAIN), tmp_path)
        assert [each["kind"] for each in said] == ["Interrupted"] * 2, said
        assert [each["quiet"] for each in said] == [False, True]
        assert "stopped after step" in said[0]["error"]
    names = sorted(each.name for each in (first / "checkpoints").iterdir())
    assert names == ["step-000000002", "step-000000003"]
    shutil.rmtree(first / "checkpoints" / names[1])  # back to the sharded one
    three = shutil.copytree(first, tmp_path / "three")
    well(
        on_ranks(
            3,
            partial(run, three, host=Host(workers=0, shard=True, effort=BRIEF), **PLAIN),
            tmp_path,
        )
    )
    run(first, **PLAIN)
    for folder in (first, three):
        same_curves(folder, alone)


def test_a_sharded_checkpoint_is_every_bit_of_the_whole_and_damage_is_found(
    sharded: Path, tmp_path: Path
) -> None:
    places = sorted((sharded / "checkpoints").iterdir())
    found, remarks = checkpoints.load(sharded / "checkpoints")
    assert found is not None
    assert (found.state["step"], remarks) == (4, [])
    model = vitlab.load(sharded).state_dict()
    for name, tensor in pick("average", found.tensors).items():
        assert torch.equal(tensor, model[name])
    names = {file.name for file in places[-1].iterdir()}
    assert {"manifest.json", "shards.json", "state-00002-of-00002.safetensors"} < names
    for name in names - {"manifest.json"}:
        copy = shutil.copytree(sharded / "checkpoints", tmp_path / name)
        content = bytearray((copy / places[-1].name / name).read_bytes())
        content[len(content) // 2] ^= 4
        (copy / places[-1].name / name).write_bytes(content)
        older, remarks = checkpoints.load(copy)
        assert older is not None
        assert older.state["step"] < 4
        assert len(remarks) == 1


def with_a_full_disk(folder: Path) -> str:
    """One process of a sharded run; the second one's disk is full at its third save."""
    real, saves = checkpoints.save_file, 0

    def full(tensors: Any, file: Path) -> None:
        nonlocal saves
        saves += 1
        if saves == 3 and "00002-of" in file.name:
            raise OSError(28, os.strerror(28))
        real(tensors, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        return run(
            folder, host=Host(workers=0, shard=True, checkpoint_every=0, effort=BRIEF), **PLAIN
        )


def test_a_full_disk_in_one_process_ends_all_and_keeps_the_older_checkpoints(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    for each in on_ranks(2, partial(with_a_full_disk, folder), tmp_path):
        assert each["error"].startswith("process 1: cannot write")
        assert each["error"].endswith("no space left on device")
    found, remarks = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert (found.state["step"], remarks) == (2, [])
    assert not list((folder / "checkpoints").glob(".*"))


@pytest.mark.parametrize(
    "how",
    [
        {"model": TINY_8, "stem": "hmlp", "stem_norm": "batch", "pool": "attention"},
        pytest.param({"model": "BiT-R(1-1)x1", "image_size": 32}, marks=CAMPAIGN),
        pytest.param({"model": f"Axial-{TINY_8}", "positions_at": "shared"}, marks=CAMPAIGN),
        pytest.param({"model": TINY_8, "positions": "relative", "registers": 2}, marks=CAMPAIGN),
    ],
)
def test_damaged_images_and_every_kind_of_model_as_with_one_process(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    photos = photo_folder(tmp_path / "photos", {"blue": 9, "red": 9})
    for number in range(3):
        (photos / "red" / f"{number:03d}.png").write_bytes(b"no image")
    how = {"epochs": 1, "batch": 5, "area": 1.0, "flip": False, "ema": 0.0, "lr": 1e-4} | how
    how |= {"warmup": 0, "precision": "fp32"}
    host = Host(workers=0, max_bad=0.5, effort=BRIEF)
    run(tmp_path / "one", str(photos), host, **how)
    well(on_ranks(3, partial(run, tmp_path / "three", str(photos), host, **how), tmp_path))
    same_norms(tmp_path / "three", tmp_path / "one", rel=2e-3)
    a, b = (RunFolder(tmp_path / name).journal.read() for name in ("one", "three"))
    assert a[-1]["damaged"] == b[-1]["damaged"] == 3
    assert a[-1]["images"] == b[-1]["images"]
    for mine, other in zip(curve(tmp_path / "three"), curve(tmp_path / "one"), strict=True):
        assert mine[:2] == other[:2]
        assert mine[2] == pytest.approx(other[2], rel=2e-3)


def normed() -> list[float]:
    """How far synchronous batch norm over unequal slices is from batch norm over the whole."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(7, 3, 2, 2, generator=generator) * 2 + 30
    toward = torch.randn(7, 3, 2, 2, generator=generator)
    model = nn.Sequential(nn.BatchNorm2d(3))
    nn.init.normal_(model[0].weight, generator=generator)
    reference = nn.BatchNorm2d(3)
    reference.load_state_dict(model[0].state_dict())
    synchronize(model)
    assert isinstance(model[0], SyncBatchNorm)
    with joined("cpu", 60) as (world, _):
        cut = [(0, 4), (4, 4), (4, 7)][world.rank]
        mine, all_images = (
            each.clone().requires_grad_() for each in (whole[cut[0] : cut[1]], whole)
        )
        model(mine).backward(toward[cut[0] : cut[1]])
        out = reference(all_images)
        out.backward(toward)
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        weights = zip(model.parameters(), reference.parameters(), strict=True)
        pairs = [
            (mine.grad, all_images.grad[cut[0] : cut[1]]),
            *zip(model.buffers(), reference.buffers(), strict=True),
            *((a.grad, b.grad) for a, b in weights),
        ]
        return [float((a - b).abs().max()) if a.numel() else 0.0 for a, b in pairs]


def test_batch_norm_over_unequal_slices_is_that_of_the_whole(tmp_path: Path) -> None:
    well(said := on_ranks(3, normed, tmp_path))
    for each in said:
        assert max(each["value"]) < 2e-5


def disagreeing() -> list[str]:
    with joined("cpu", 60) as (world, _):
        texts = world.gather("ü" * world.rank)
        assert world.sums(1, world.rank) == [3, 3]
        assert world.any(world.rank == 1, False) == [True, False]
        assert world.broadcast({"a": world.rank}) == {"a": 0}
        try:
            with world.agreed():
                if world.rank == 2:
                    raise DiskError("no room")
        except DiskError as error:
            texts += [str(error), str(error.quiet)]
        return texts


def test_processes_tell_each_other_and_agree_on_errors(tmp_path: Path) -> None:
    well(said := on_ranks(3, disagreeing, tmp_path))
    for rank, each in enumerate(said):
        assert each["value"] == ["", "ü", "üü", "process 2: no room", str(rank > 0)]


def test_what_cannot_be_is_refused_in_one_line_by_each(tmp_path: Path) -> None:
    for each in on_ranks(3, partial(run, tmp_path / "run", **PLAIN | {"batch": 2}), tmp_path):
        assert each["error"] == (
            "3 processes cannot share a batch of 2: choose a batch= of at least 3, or start "
            "fewer processes"
        )
    assert not (tmp_path / "run").exists()


def test_what_processes_cannot_share() -> None:
    for size, shard, how, says in (
        (2, False, {"budget": "60s"}, "--budget needs a single process, not 2: set --epochs or"),
        (2, False, {"precision": "bf16-pure"}, "--precision bf16-pure needs a .*: use --precision"),
        (1, True, {}, "--shard needs several processes: start with torchrun"),
        (2, True, {"optimizer": "lamb"}, "does not support lamb: choose from sgd, adam, adamw, wi"),
        (2, True, {"rho": 0.1}, "--shard does not support SAM: choose"),
        (2, True, {"patience": 3}, "--shard does not support --patience"),
    ):
        with pytest.raises(OptionError, match=says):
            check_world(
                vitlab.recipe("digits", **how), Host(shard=shard, effort=BRIEF), World(0, size)
            )
    check_world(vitlab.recipe("digits", batch=2), Host(shard=True, effort=BRIEF), World(0, 2))
    with pytest.raises(OptionError, match="--shard does not support task=mae: leave it out"):
        recipe, labels = vitlab.recipe("mae"), SingleLabels(np.zeros(1, np.int64))
        check_guide(recipe, Host(shard=True, effort=BRIEF), ViTConfig(), None, labels)
    with pytest.raises(DeviceError, match="'cuda:0' is a single GPU, but there are 2 processes"):
        choose_device("cuda:0", World(0, 2))
    assert choose_device("auto", World(0, 2)).type in ("cpu", "cuda")


def words_of(folder: Path, **how: Any) -> list[str]:
    words = ["train", "digits", "--out", str(folder), "--checkpoint-every", "0", "--workers", "1"]
    for key, value in how.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def torchrun(folder: Path, restarts: int = 3, **how: Any) -> int:
    """The number of a process that is `torchrun -m vitlab train` with two processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [sys.executable, *launch, "--max-restarts", f"{restarts}", "-m", "vitlab"]
    errors = (os.POSIX_SPAWN_OPEN, 2, folder.parent / "stderr", os.O_WRONLY | os.O_CREAT, 0o600)
    around = environment(OMP_NUM_THREADS="1")
    return os.posix_spawn(
        sys.executable, words + words_of(folder, **how), around, file_actions=[errors]
    )


def rank_of(pid: int) -> str:
    """The rank that a process was started with, where it was."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next((w[5:].decode() for w in words if w.startswith(b"RANK=")), "")
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Whether a process has ended, if perhaps nobody has heard of it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def ranks_of(launcher: int) -> dict[str, int]:
    """The processes that torchrun started, by rank."""
    words = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return {rank_of(int(pid)): int(pid) for pid in words}


def steps_done(folder: Path) -> int:
    return max((line[1] for line in curve(folder)), default=0) if folder.exists() else 0


def wait_for_steps(launcher: int, folder: Path, steps: int) -> None:
    def are_done() -> bool:
        assert os.waitpid(launcher, os.WNOHANG) == (0, 0), (folder.parent / "stderr").read_text()
        return steps_done(folder) >= steps

    wait_until(are_done)


def one_rank(words: list[str], place: Path) -> None:
    """One process of torchrun's: the command, and a file with the process's number."""
    (place / f"rank-{os.environ['RANK']}").write_text(str(os.getpid()))
    sys.argv[1:] = words
    entry.main()


def launch(folder: Path, words: list[str]) -> None:
    """What torchrun does, whose processes are forked and so have nothing to import."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="one", max_restarts=3,
        start_method="fork", monitor_interval=0.1,
    )  # fmt: skip
    elastic_launch(config, one_rank)(words, folder.parent)


def launched(folder: Path, **how: Any) -> int:
    """The number of a forked process that launches."""
    words = words_of(folder, **how)
    if launcher := os.fork():
        return launcher
    try:
        os.dup2(os.open(folder.parent / "stderr", os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            launch(folder, words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ended(launcher: int) -> None:
    """Wait for its end."""
    wait_until(lambda: os.waitpid(launcher, os.WNOHANG) != (0, 0))


@pytest.mark.parametrize(
    "forked",
    [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.campaign)],
)
def test_a_killed_process_is_started_anew_and_a_signal_stops_all_at_one_step(
    tmp_path: Path, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forked:  # torchrun's own processes know all digits
        monkeypatch.setattr(memory, "digits", inspect.unwrap(memory.digits))
    how = PLAIN | {"epochs": 12, "test_every": 10}
    folder = tmp_path / "run"
    launcher = launched(folder, **how) if forked else torchrun(folder, **how)
    wait_for_steps(launcher, folder, 3)
    rank = (tmp_path / "rank-1").read_text() if forked else ranks_of(launcher)["1"]
    os.kill(int(rank), signal.SIGKILL)
    wait_until(lambda: is_gone(int(rank)))
    wait_for_steps(launcher, folder, steps_done(folder) + 3)  # of which one was under way
    os.kill(launcher, signal.SIGTERM)
    ended(launcher)
    said = (tmp_path / "stderr").read_text()
    assert "vitlab train: process 0 of 2 lost contact with the others" in said
    assert "continuing after step" in said
    assert said.count("vitlab train: stopped after step") == 1
    found, remarks = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert f"stopped after step {found.state['step']:,} of " in said
    assert not remarks
    run(folder, **how)  # to the end, with one
    run(tmp_path / "alone", **how)
    assert [e[:2] for e in curve(folder)] == [e[:2] for e in curve(tmp_path / "alone")]
    assert curve(folder)[-1][2] == pytest.approx(curve(tmp_path / "alone")[-1][2], rel=1e-2)


def said(store: dist.HashStore) -> list[bytes]:
    """What two processes have answered to a call; nothing before the first one."""
    return [store.get(f"answer {rank}") for rank in (1, 2) if store.check(["call"])]


def has_answers(store: dist.HashStore, before: list[bytes]) -> bool:
    """Whether both have answered what is left of a dead process's call, if there is one."""
    return all(new != old for new, old in zip(said(store), before, strict=True))


def test_processes_meet_whatever_dead_ones_left_in_the_store() -> None:
    store = dist.HashStore()
    for _ in range(3):
        before = said(store)
        with ThreadPoolExecutor(3) as threads:
            late = [threads.submit(meet, store, World(rank, 3), PATIENCE) for rank in (1, 2)]
            wait_until(partial(has_answers, store, before))
            early = threads.submit(meet, store, World(0, 3), PATIENCE)
            early.result().set("key", "fresh")
            for each in late:
                assert each.result().get("key") == b"fresh"
    with pytest.raises(ValueError, match=r"process 0 timed out after 0.1 s waiting for all 3"):
        meet(store, World(0, 3), 0.1)


def test_slices_and_batches_of_all_processes_make_up_the_whole(photos: Path) -> None:
    config = ViTConfig(width=16, heads=2, patch=4, image_size=(16, 24), classes=3)
    source = open_to_learn(str(photos)).train
    groups = Groups.of(source.target.values)  # as classes are drawn equally often
    cases = itertools.product(((1, None), (2, groups), (3, None), (7, None), (7, groups)), ORDERS)
    for (size, balanced), kind in cases:
        order = Order(kind, balanced)
        assert [i for rank in range(size) for i in slice_of(10, rank, size)] == list(range(10))
        for k in (0, 6):
            batches = partial(TrainingBatches, source, config, Augment(area=0.5), 3, 7)
            parts = [batches(rank, size, order)[k] for rank in range(size)]
            whole = batches(order=order)[k]
            for key in ("images", "labels", "draws", "indices"):
                assert torch.equal(torch.cat([getattr(p, key) for p in parts]), getattr(whole, key))


def test_every_process_makes_as_many_passes() -> None:
    for length, micro in ((13, 4), (12, 4), (1, 4), (0, 4), (0, 0), (13, 0), (13, 5), (11, 4)):
        batch = Batch(torch.ones(length, 2, 2, 1), *(torch.ones(length, 6) for _ in range(3)))
        pieces = passes(batch, micro, World(0, 2), 25)
        assert len(pieces) == (4 if micro else 1)
        assert sum(images for _, images in pieces) == length
        assert all(len(piece) == max(1, images) for piece, images in pieces)
        assert not micro or all(len(piece) <= micro for piece, _ in pieces)
    batch = Batch(torch.ones(13, 2, 2, 1), *(torch.ones(13, 6) for _ in range(3)))
    assert [images for _, images in passes(batch, 4, ALONE, 13)] == [4, 4, 4, 1]


def test_the_environment_says_who_one_is() -> None:
    assert read_environment({}) == ALONE
    assert read_environment({"RANK": "3"}) == ALONE
    words = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    torchrun = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "4"}
    assert read_environment(words | torchrun) == World(3, 8, 1, 2, True)
