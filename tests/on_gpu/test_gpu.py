"""A real GPU against the CPU: `pytest tests/on_gpu -m gpu`."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitlab
from vitlab import device as devices
from vitlab.data.augment.augment import augment
from vitlab.data.augment.draws import draws_needed
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.loader import Upload
from vitlab.data.settings import Augment
from vitlab.errors import DeviceError
from vitlab.images import ImageSpec
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.on_device import sent
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.optimizers import build
from vitlab.training.guard import out_of_memory_explained
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

pytestmark = pytest.mark.gpu
NAME = "ViT(width=64,depth=2,heads=4,mlp=128)/8"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (NAME, {}),
    "parallel": (NAME, {"branches": 2, "layer_scale": 0.1, "qk_norm": True}),
    "hMLP": (NAME, {"stem": "hmlp", "stem_norm": "batch"}),
    "conv": (NAME, {"stem": "conv"}),
    "rotary": (NAME, {"positions": "rope", "registers": 2, "ffn": "swiglu"}),
    "BEiT": (NAME, {"positions": "bias", "pool": "mean", "class_token": True}),
    "pooled": (NAME, {"pool": "attention"}),
    "axial": (NAME, {"attention": "axial", "pool": "mean"}),
    "ResNet": ("BiT-R(1-1)x1", {}),
}
STRONG = Augment(area=0.3, flip=True, rand_ops=2, erase=0.5, color_jitter=0.3, rotate=10)


def a_model(form: str = "plain", **more: Any) -> Model:
    name, choices = FORMS[form]
    generator = torch.Generator().manual_seed(0)
    return vitlab.create(name, 5, 32, generator=generator, zero_head=False, **choices | more)


def some_images(count: int = 4, seed: int = 1) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@contextmanager
def exact() -> Iterator[None]:
    """Products in fp32 without TF32, and the same bits every time."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def far(mine: Tensor, theirs: Tensor) -> float:
    """Return how far two tensors are apart, relative to the length of the second."""
    difference = mine.detach().cpu().double() - theirs.detach().cpu().double()
    return float(difference.norm() / theirs.detach().cpu().double().norm().clamp(min=1e-12))


def needs_kernels() -> None:
    """Skip a test that cannot be rehearsed."""
    if not torch.backends.cuda.is_built():
        pytest.skip("needs the kernels of a GPU")


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_gradients_are_those_of_the_cpu(form: str, gpu: torch.device) -> None:
    results = []
    for device in (torch.device("cpu"), gpu):
        model = a_model(form).to(device).train()
        with exact():
            scores = model(some_images().to(device))
            F.cross_entropy(scores, torch.arange(4, device=device)).backward()
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        results.append((scores, torch.cat([grad.flatten() for grad in grads])))
    assert far(results[1][0], results[0][0]) < 1e-4
    assert far(results[1][1], results[0][1]) < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_bf16_and_the_fused_form_stay_near(form: str, gpu: torch.device) -> None:
    model, images = a_model(form).eval(), some_images()
    with torch.no_grad():
        want = model(images)
        fused, there = vitlab.fuse(model).to(gpu), images.to(gpu)
        with exact():
            assert far(fused(there), want) < 1e-4
        with devices.autocast(gpu, "bf16"):
            assert far(model.to(gpu)(there).float(), want) < 0.05


def test_packed_images_are_as_one_at_a_time(gpu: torch.device) -> None:
    model = a_model(positions="rope", pool="mean").to(gpu).eval()
    images = [torch.rand(3, 8 * rows, 8 * columns) for rows, columns in ((3, 4), (2, 2), (4, 4))]
    there = [image.to(gpu) for image in images]
    with torch.no_grad():
        want = torch.cat([model(image[None]) for image in there])
        with devices.autocast(gpu, "bf16"):  # on a GPU by the kernel for variable lengths
            got = model(Packed.of(there, 8))
    assert far(got.float(), want) < 0.05


@pytest.mark.parametrize("engine", ["packed", "compiled"])
def test_the_fast_form_agrees_at_every_batch(engine: Any, gpu: torch.device) -> None:
    if engine == "compiled":
        needs_kernels()
    model = a_model().eval()
    fast = vitlab.accelerate(model, device=gpu.type, precision="bf16", engine=engine)
    with torch.no_grad():
        for size in (1, 3, 4, 1):
            images = some_images(size)
            assert far(fast(images.to(gpu)), model(images)) < 0.05


def training(
    gpu: torch.device, drop_path: float = 0.1, **fields: Any
) -> tuple[Trainer, RunState, Batch]:
    """A trainer, its state, and a batch on the host."""
    given = {"lr": 1e-3, "warmup": 0, "ema": 0.9, "rand_ops": 2, "mixup": 0.2, "batch": 16}
    recipe = vitlab.recipe("small", "digits", model=NAME, **given | fields)
    model = a_model(drop_path=drop_path).to(gpu)
    state = RunState(model, WeightAverage(model, 0.9), build(model, recipe.optimizer))
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (16, 32, 32, 3), dtype=torch.uint8, generator=generator)
    draws = torch.rand(16, draws_needed(recipe.augment), generator=generator)
    return (
        Trainer(model, recipe),
        state,
        Batch(images, torch.arange(16) % 5, draws, torch.arange(16), total=16),
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_steps_lower_the_loss_and_resume_to_the_same_bits(
    precision: str, gpu: torch.device
) -> None:
    trainer, state, batch = training(gpu, precision=precision)
    losses = []
    with exact():
        for step in range(12):
            if step == 8:
                saved = copy.deepcopy(state.checkpoint())
            losses.append(trainer.step(state, batch, 1e-3, step).loss)
        after = [weight.detach().clone() for weight in state.model.parameters()]
        again, other, _ = training(gpu, precision=precision)
        other.restore(saved)
        for step in range(8, 12):
            again.step(other, batch, 1e-3, step)
    assert losses[-1] < losses[0]
    assert all(map(torch.equal, other.model.parameters(), after))


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Within the context, a wait of the host for the GPU is an error."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("choices", [{}, {"precision": "bf16", "erase": 0.5}, {"micro_batch": 4}])
def test_the_host_waits_for_no_step(choices: dict[str, Any], gpu: torch.device) -> None:
    trainer, state, batch = training(gpu, **choices)
    if gpu.type == "cuda":
        batch = batch.pin_memory()
    trainer.step(state, batch, 1e-3, 0)  # kernels are loaded, moments are made
    with no_waiting(gpu):
        figures = [trainer.step(state, batch, 1e-3, seed) for seed in (1, 2)]
    assert all(not each.fault for each in figures)


def test_a_loss_that_is_not_finite_changes_nothing(gpu: torch.device) -> None:
    trainer, state, batch = training(gpu)
    trainer.step(state, batch, 1e-3, 0)
    with torch.no_grad():
        next(iter(state.model.parameters())).view(-1)[:1].fill_(float("inf"))
    before = [weight.detach().clone() for weight in state.model.parameters()]
    assert trainer.step(state, batch, 1e-3, 1).fault
    assert all(map(torch.equal, state.model.parameters(), before))


def test_a_compiled_step_is_the_plain_one(gpu: torch.device) -> None:
    needs_kernels()
    losses = []
    for compiled in (False, True):  # which draw other numbers where a model draws
        trainer, state, batch = training(gpu, mixup=0.0, drop_path=0.0, precision="fp32")
        trainer = Trainer(state.model, trainer.recipe, compiled=compiled)
        with exact():
            losses.append([trainer.step(state, batch, 1e-3, seed).loss for seed in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_augmentation_is_that_of_the_cpu(gpu: torch.device) -> None:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (32, 32, 32, 3), dtype=torch.uint8, generator=generator)
    draws = torch.rand(32, draws_needed(STRONG), generator=generator)
    spec = ImageSpec(mean=0.5, std=0.25)
    want = augment(images, draws, STRONG, spec)
    got = augment(images.to(gpu), draws, STRONG, spec).cpu()
    # what falls between two values may be rounded to the other one
    assert ((got - want).abs() > 0.05).float().mean() < 0.005


def test_batches_are_pinned_and_arrive_whole(gpu: torch.device) -> None:
    _, _, batch = training(gpu)
    if gpu.type == "cuda":
        batch = batch.pin_memory()
        assert batch.images.is_pinned()  # type: ignore[union-attr]
    fetched = devices.fetched([some_images().to(gpu)])
    assert torch.equal(fetched()[0].cpu(), some_images())
    with no_waiting(gpu):
        there = sent(torch.ones(2**17), gpu)
    assert float(there.sum()) == 2**17
    moved = Upload(gpu)(batch)
    assert moved.labels.device.type == gpu.type
    assert moved.draws.device.type == "cpu"
    assert torch.equal(moved.images.cpu(), batch.images)  # type: ignore[union-attr, arg-type]


def test_memory_is_counted_and_its_lack_explained(gpu: torch.device) -> None:
    needs_kernels()
    devices.restart_peak(gpu)
    block = torch.ones(2**26, dtype=torch.uint8, device=gpu)
    assert devices.peak_memory(gpu) >= block.nbytes
    with pytest.raises(DeviceError, match="with 7 images per pass"), out_of_memory_explained(7):
        torch.empty(2**50, device=gpu)
