"""Networks are built once for a load or a save, and no two models share one."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

import vitlab
from counted import networks
from made_models import equal, noisy, tiny
from vitlab.models.model import KEPT

FORMATS = ("vitlab", "timm", "transformers", "google")
WIDTHS = iter(range(16, 4096, 16))  # a configuration that no other test has built


def new_model(**choices: Any) -> Any:
    name = f"ViT(width={next(WIDTHS)},depth=2,heads=2,mlp=32)/8"
    return noisy(tiny(0, name, gelu="tanh", fit="squash", **choices))


def test_a_load_builds_the_network_that_it_returns(tmp_path: Path) -> None:
    """What a process of its own does, in which nothing was built before."""
    models = {to: new_model() for to in FORMATS}
    for to, model in models.items():
        vitlab.save(model, tmp_path / to, to=to)
    for side in range(24, 24 + 8 * KEPT, 8):  # other configurations, until these are forgotten
        models["google"].resize(side).resize(16)
    for to, model in models.items():
        with networks() as built:
            loaded = vitlab.load(tmp_path / to)
        assert built == [loaded], to
        assert equal(loaded, model)


@pytest.mark.parametrize("to", FORMATS)
def test_a_save_builds_one_for_each_configuration(to: str, tmp_path: Path) -> None:
    model = new_model()
    with networks() as built:
        vitlab.save(model, tmp_path / "m", to=to)
    assert len(built) <= (2 if to == "transformers" else 1)  # which has no center="round"
    with networks() as built:
        vitlab.save(model, tmp_path / "again", to=to)
    assert not built


def test_a_state_dict_alone_is_loaded_with_one(tmp_path: Path) -> None:
    model = new_model()
    torch.save(model.state_dict(), tmp_path / "m.pth")
    with networks() as built:
        vitlab.load(tmp_path / "m.pth", image_size=16, heads=2)
    assert len(built) == 1


def test_models_of_one_configuration_have_modules_of_their_own(tmp_path: Path) -> None:
    model = new_model()
    vitlab.save(model, tmp_path / "m")
    loaded = [vitlab.load(tmp_path / "m") for _ in range(3)]
    modules = [id(module) for each in (model, *loaded) for module in each.modules()]
    assert len(modules) == len(set(modules))
    with torch.no_grad():
        loaded[0].token.fill_(7)
    loaded[0].blocks[0].register_forward_hook(lambda *_: pytest.fail("another model's hook"))
    loaded[0].train().requires_grad_(requires_grad=False)
    last = vitlab.load(tmp_path / "m")
    for each in (*loaded[1:], last):
        assert equal(each, model)
        assert not each.training
        assert all(weight.requires_grad for weight in each.parameters())
        each(torch.zeros(1, 3, 16, 16)).sum().backward()


def test_what_was_built_in_inference_mode_learns(tmp_path: Path) -> None:
    vitlab.save(new_model(), tmp_path / "m")
    with torch.inference_mode():
        assert not vitlab.load(tmp_path / "m")(torch.zeros(1, 3, 16, 16)).requires_grad
        vitlab.save(new_model(), tmp_path / "new")
    loaded = vitlab.load(tmp_path / "new")
    loaded(torch.zeros(1, 3, 16, 16)).sum().backward()
    assert all(weight.grad is not None for weight in loaded.parameters())


def test_threads_load_models_of_their_own(tmp_path: Path) -> None:
    model = new_model()
    vitlab.save(model, tmp_path / "m")
    loaded: list[Any] = []
    threads = [Thread(target=lambda: loaded.append(vitlab.load(tmp_path / "m"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    assert all(equal(each, model) for each in loaded)
    modules = [id(module) for each in loaded for module in each.modules()]
    assert len(modules) == len(set(modules))


def test_a_choice_that_equals_anothers_keeps_its_own_type(tmp_path: Path) -> None:
    """A configuration is written as it was given: 1 where another, equal one has 1.0."""
    width = next(WIDTHS)
    name = f"ViT(width={width},depth=1,heads=2,mlp=32)/8"
    one, other = (tiny(0, name, layer_scale=scale) for scale in (1, 1.0))
    for each, folder in ((one, tmp_path / "one"), (other, tmp_path / "other")):
        vitlab.save(each, folder)
        loaded = vitlab.load(folder)
        again = vitlab.save(loaded, folder.with_suffix(".again"))
        assert (again / "config.json").read_bytes() == (folder / "config.json").read_bytes()
