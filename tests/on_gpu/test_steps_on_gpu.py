"""Training on a GPU that is not there: no step or copy waits for it; also one without float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from conftest import BRIEF, TINY, photo_folder
from on_gpu.a_gpu_there import a_gpu, no_wait
from on_gpu.stand_in import StandIn
from steps import each_step
from vitlab import on_device
from vitlab.data.augment import augment as augmenting
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.loader import Upload
from vitlab.data.open_splits import open_to_learn
from vitlab.device import fetched
from vitlab.errors import DeviceError
from vitlab.evaluation import infer as room
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes.blocks import Blocks
from vitlab.evaluation.probes.heads import logistic
from vitlab.models.stems.stem import resample_kernels
from vitlab.on_device import STAGED, sent
from vitlab.optim.optimizers import build
from vitlab.recipes.named import RECIPES
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

ON_GPU = Host(device="cuda", workers=0, compile="no", effort=BRIEF)
SMALL = {"model": TINY["model"], "image_size": 16, "batch": 8, "steps": 3}
QUICK = TINY | {"batch": 16, "steps": 3}
# of optimizers that cannot tell by themselves, on the GPU, that a step must not be taken
PERMISSION = {
    "_local_scalar_dense at vitlab/training/guard.py",
    "copy of (3,) from the GPU at vitlab/training/guard.py",
}
FEW = ("three-things", "deit3", "lejepa", "mae", "masked-patch")
# need a tokenizer, a teacher, minutes, boxes (whose matching is the host's), numbers, a fitted head
ELSEWHERE = {"beit", "dino", "tokenizer", "deit-distilled", "detect", "regress", "segment"}
OTHERS = [e for e in RECIPES if e not in {*ELSEWHERE, *FEW} and not e.endswith("finetune")]
SMALLER = {  # parts of these recipes, which the size of the model does not decide
    "mae": {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2},
    "lejepa": {"local_crops": 2, "slices": 8, "embedding": 8, "head_width": 16},
}
CHOICES: dict[str, dict[str, Any]] = {
    "bf16, RandAugment": {
        "precision": "bf16", "dropout": 0.1, "drop_path": 0.5, "rand_ops": 2, "erase": 0.9,
        "balance": "focal", "stem_norm": "batch",
    },
    "bf16-pure, jitter": {
        "precision": "bf16-pure", "color_jitter": 0.3, "hue_jitter": 0.1, "grayscale": 0.2,
        "blur": 0.5, "layer_decay": 0.7, "layer_scale": 0.1, "clip": 0.0, "loss": "sigmoid",
    },
    "pieces, 3-Augment": {
        "micro_batch": 5, "mixup": 0.3, "cutmix": 0.5, "three_augment": True, "loss": "bce",
        "bce_threshold": 0.2, "label_smoothing": 0.0,
    },
    "SAM, bicubic": {
        "rho": 0.05, "rotate": 20.0, "augment_interpolation": "bicubic", "balance": "weights",
    },
    "Adam": {"optimizer": "adam", "micro_batch": "auto"},
}  # fmt: skip
OPTIMIZERS = ("sgd", "adafactor", "lamb", "lars", "shampoo", "soap", "muon", "schedule-free")


@contextmanager
def steps_noted(gpu: StandIn) -> Iterator[list[str]]:
    """Within the context, the list has what steps wait for, but for the first of a run."""
    found: list[str] = []
    before: list[int] = []

    def begin(trainer: Trainer, *_: object) -> None:
        assert trainer.device.type == "cuda"
        before.append(len(gpu.waits))

    def end(trainer: Trainer, state: RunState, _: object) -> None:
        if state.step > 1:
            found.extend(gpu.waits[before[-1] :])

    with each_step(begin, end):
        yield found


def trained(recipe: Recipe, folder: Path) -> list[str]:
    """Train on a GPU that is not there; return what its steps have waited for."""
    with a_gpu() as gpu, steps_noted(gpu) as waits:
        vitlab.train(recipe, folder, host=ON_GPU)
    return waits


@pytest.fixture(scope="module")
def few_photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(photo_folder(tmp_path_factory.mktemp("few") / "photos", {"a": 8, "b": 8, "c": 8}))


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(e, marks=pytest.mark.campaign) for e in OTHERS)]
)
def test_no_step_of_a_recipe_waits_but_for_permission(
    name: str, few_photos: str, tmp_path: Path
) -> None:
    recipe = vitlab.recipe(name, few_photos, **SMALL | SMALLER.get(name, {}))
    waits = trained(recipe, tmp_path / "run")
    asks = recipe.optimizer.optimizer not in ("adam", "adamw")
    assert {wait.split(":")[0] for wait in waits} == (PERMISSION if asks else set())


@pytest.mark.parametrize("choice", CHOICES)
def test_no_step_with_a_choice_waits(choice: str, tmp_path: Path) -> None:
    assert trained(vitlab.recipe("digits", **QUICK | CHOICES[choice]), tmp_path / "run") == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps(name: str) -> None:
    own = {"precondition_every": 1} if name in ("shampoo", "soap") else {}
    model = vitlab.create(TINY["model"], 10, 8, channels=1)
    with a_gpu():
        model = model.to("cuda")
        optimizer = build(model, Optimization(optimizer=name, **own))
        for _ in range(2):
            model(torch.ones(2, 1, 8, 8, device="cuda")).square().sum().backward()
            optimizer.step()
        assert {each.device.type for each in model.parameters()} == {"cuda"}


def test_a_run_is_that_of_a_cpu(tmp_path: Path) -> None:
    """Masks, mixing, draws and order are the host's: a GPU may only round differently."""
    more = {"mixup": 0.3, "erase": 0.5, "rand_ops": 1, "precision": "fp32"}
    recipe = vitlab.recipe("digits", **QUICK | more)
    want = vitlab.train(recipe, tmp_path / "cpu", host=Host(device="cpu", workers=0, effort=BRIEF))
    with a_gpu():
        run = vitlab.train(recipe, tmp_path / "gpu", host=ON_GPU)
        got = [weight.detach().cpu() for weight in run.model.parameters()]
    for mine, theirs in zip(got, want.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-5)


def test_a_batch_is_on_its_way_without_a_wait() -> None:
    images = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    batch = Batch(images, torch.arange(2), torch.rand(2, 4), torch.arange(2))
    with a_gpu() as gpu:
        upload = Upload(torch.device("cuda"))
        with no_wait(gpu):
            there = upload(batch)
        assert isinstance(there.images, Tensor)
        assert (there.images.device.type, there.labels.device.type) == ("cuda", "cuda")
        assert there.draws is batch.draws  # read on the host
        assert torch.equal(there.images.cpu(), images)


def test_copies_both_ways_wait_only_where_they_are_read() -> None:
    large = torch.arange(STAGED, dtype=torch.float32)
    with a_gpu() as gpu:
        with no_wait(gpu):
            there = sent(large, torch.device("cuda"))
            read = fetched([there, there + 1])
        first, second = read()
        assert gpu.waits
    assert torch.equal(first, large)
    assert torch.equal(second, large + 1)


@pytest.mark.parametrize("flips", [False, True])
def test_predictions_are_read_one_batch_late(monkeypatch: pytest.MonkeyPatch, flips: bool) -> None:
    """And they are those of a CPU, in its order."""
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 10, 8, channels=1)
    torch.nn.init.normal_(model.head.classify.weight, std=0.1)
    source = open_to_learn("digits").test
    monkeypatch.setattr(room, "BATCH", 100)
    events: list[str] = []
    begun = room._Pass.begun

    def noted(*args: object) -> object:
        events.append("begun")
        ready = begun(*args)  # type: ignore[arg-type]

        def read() -> room.Inferred:
            events.append("read")
            return ready()

        return read

    def parts(device: str) -> Iterator[room.Inferred]:
        compute = Compute(torch.device(device), engine="plain", workers=0)
        return room.infer(model, source, compute, flips=flips)

    want = list(parts("cpu"))
    monkeypatch.setattr(room._Pass, "begun", noted)
    with a_gpu():
        got = list(parts("cuda"))
    assert events == ["begun", "begun", "read", "begun", "read", "begun", "read", "read"]
    for mine, theirs in zip(got, want, strict=True):
        assert np.array_equal(mine.indices, theirs.indices)
        np.testing.assert_allclose(mine.probabilities, theirs.probabilities, atol=1e-5)
        np.testing.assert_allclose(mine.logits, theirs.logits, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_fast_form_never_waits(precision: str) -> None:
    """Its outputs are near the model's."""
    model = vitlab.create("ViT(width=64,depth=2,heads=4,mlp=128)/8", 5, 32, branches=2)
    torch.nn.init.normal_(model.head.classify.weight, std=0.1)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        want = model(images)
    with a_gpu() as gpu, torch.no_grad():
        fast = vitlab.accelerate(model, device="cuda", precision=precision, engine="packed")  # type: ignore[arg-type]
        there = images.to("cuda")
        fast(there)
        with no_wait(gpu):
            got = fast(there)
            fast.features(there)
        got = got.cpu()
    assert got.dtype is torch.float32
    assert (got - want).norm() <= (1e-5 if precision == "fp32" else 0.05) * want.norm()


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    for place in (on_device, augmenting):
        monkeypatch.setattr(place, "WITHOUT_FLOAT64", ("cuda",))
    with a_gpu() as gpu:
        gpu.float64 = False
        with pytest.raises(TypeError, match="float64"):
            torch.ones(1, device="cuda").double()
        yield gpu


@pytest.fixture
def model() -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    made = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 10, 8, channels=1)
    torch.nn.init.normal_(made.head.classify.weight, std=0.1)
    return made.eval()


@pytest.mark.parametrize("choice", ["bf16, RandAugment", "pieces, 3-Augment", "SAM, bicubic"])
def test_it_trains(apple: StandIn, choice: str, tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **QUICK | CHOICES[choice])
    assert vitlab.train(recipe, tmp_path / "run", host=ON_GPU).metrics["images"] == 359


def test_it_learns_without_labels(apple: StandIn, tmp_path: Path) -> None:
    photos = str(photo_folder(tmp_path / "photos", {"a": 8, "b": 8}))
    own = {"prototypes": 32, "local_size": 8, "local_crops": 1}
    vitlab.train(vitlab.recipe("dino", photos, **SMALL | own), tmp_path / "run", host=ON_GPU)


def test_what_is_stored_in_float64_cannot_be_trained(apple: StandIn, tmp_path: Path) -> None:
    photos = str(photo_folder(tmp_path / "photos", {"a": 8, "b": 8}))
    recipe = vitlab.recipe("tokenizer", photos, image_size=16, batch=8, steps=1)
    remedy = r'needs float64, which cuda lacks: use host=vitlab\.Host\(device="cpu"\)$'
    with pytest.raises(DeviceError, match=remedy):
        vitlab.train(recipe, tmp_path / "run", host=ON_GPU)


def test_predictions_and_features_are_those_of_the_cpu(
    apple: StandIn, model: vitlab.VisionTransformer, tmp_path: Path
) -> None:
    found = [vitlab.evaluate(model, "digits", device=each) for each in ("cpu", "cuda")]
    for key in ("accuracy", "nll", "ece"):
        assert found[1][key] == pytest.approx(found[0][key], abs=1e-5)
    vitlab.embed(model, "digits", tmp_path / "x.parquet", device="cuda")


def test_a_probe_is_fitted_on_the_host(apple: StandIn) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.repeat(np.arange(3), 20)
    found = [logistic(Blocks(x, torch.device(each)), y, 3, 1.0) for each in ("cpu", "cuda")]
    assert np.array_equal(found[0].weights, found[1].weights)


def test_other_sizes_and_a_look_inside(apple: StandIn) -> None:
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", 3, 16, positions="bias")
    images = torch.randn(4, 3, 16, 16)
    looks: list[Callable[[vitlab.VisionTransformer, Tensor], Any]] = [
        lambda model, images: model.resize(24)(torch.ones(1, 3, 24, 24).to(images)).detach(),
        lambda model, images: resample_kernels(next(model.stem.parameters()).detach(), 6),
        vitlab.inspect.attention_distance,
        lambda model, images: vitlab.inspect.similar_patches(model, images, 1),
        vitlab.inspect.feature_colors,
    ]
    want = [torch.as_tensor(look(model, images)) for look in looks]
    model = model.to("cuda")
    for look, expected in zip(looks, want, strict=True):
        got = torch.as_tensor(look(model, images.to("cuda"))).cpu()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
