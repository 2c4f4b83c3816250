"""What is computed once, what is kept, and who waits for whom."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from explore.made import SMALL, Exploring, kinds
from made_heads import SHAPES, segmenter
from serve.made import encoded, tiny
from steady import PATIENCE
from vitlab.explore import views
from vitlab.explore.explorer import Worker
from vitlab.explore.lru import Kept
from vitlab.explore.views import Shown, first_pass
from vitlab.inspect.look import attention_bytes


def test_one_pass_however_many_ask_until_others_need_the_room() -> None:
    model, sizes = tiny(SMALL), list[int]()
    model.stem.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    exploring = Exploring(("one", model), most=1)
    explorer = exploring.explorer

    async def ask() -> None:
        images = [await explorer.gallery.open(encoded(n), str(n)) for n in (1, 2)]
        looks = await asyncio.gather(*(explorer.look(0, images[0]) for _ in range(5)))
        assert len({id(look) for look in looks}) == 1
        assert sizes == [1]
        for image in (images[1], images[0], images[0]):
            await explorer.look(0, image)

    exploring(ask())
    exploring.close()
    assert sizes == [1, 1, 1]


def test_colors_share_their_basis_with_the_latest_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.explore.explorer.LATEST", 2)
    exploring = Exploring(("one", tiny(SMALL)))
    images = [exploring.ask(f"/api/images?name={n}", encoded(n)).json["id"] for n in range(3)]
    bases = [exploring.ask(f"/api/look/0/{each}/colors").json["basis"] for each in images]
    exploring.close()
    assert bases == [images[:1], images[:2], images[1:]]


def test_the_cells_of_a_model_are_pixels_that_are_covered() -> None:
    """Also where they are not squares of pixels: those that a cell is drawn as."""
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/6", 3, (24, 36)).eval()
    seen = first_pass(model, torch.ones(1, 3, 24, 36))
    assert views.pixels_of(seen, [0, 23]) == [(0, 0, 6, 6), (18, 30, 24, 36)]


def test_the_mask_of_a_run_that_segments() -> None:
    own = segmenter()
    exploring = Exploring(("scenes", own), ("plain", tiny(SMALL)))
    try:
        image = exploring.ask("/api/images?name=a", encoded(3)).json["id"]
        found = exploring.ask(f"/api/look/0/{image}/mask").json
        refused = exploring.ask(f"/api/look/1/{image}/mask")
        views = [each["views"] for each in exploring.ask("/api/state").json["models"]]
    finally:
        exploring.close()
    with torch.inference_mode():
        labels = own(vitlab.preprocess(own.model)(encoded(3)))[0].argmax(0)
    assert found["labels"] == labels.tolist()
    assert found["names"] == [*SHAPES]
    assert len({tuple(each) for each in found["colors"]} - {(0, 0, 0)}) == 3
    assert (refused.status, refused.error) == (
        400, "plain makes no mask: explore a run of --task segment",
    )  # fmt: skip
    assert [each.get("mask") for each in views] == ["", None]


def test_images_of_the_start_are_opened_in_order_and_bad_ones_are_named(tmp_path: Path) -> None:
    photo(0).save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(encoded(0, "JPEG")[:300])
    photo(1).save(tmp_path / "c.png")
    names = [str(tmp_path / name) for name in ("c.png", "gone.png", "b.jpg", "a.png")]
    said: list[str] = []
    exploring = Exploring(("one", tiny(SMALL)), images=names, say=said.append)
    state = exploring.ask("/api/state").json
    exploring.close()
    assert [each["name"] for each in state["images"]] == ["c.png", "a.png"]
    assert len(said) == 2
    assert said[0] == f"skipped: {names[1]}: no such file or directory"
    assert said[1].startswith("skipped: b.jpg: ")


def test_damaged_weights_are_said_to_be_so() -> None:
    """Probabilities that are not numbers are left out, and maps of them refused, in one line."""
    model = tiny(SMALL)
    with torch.no_grad():
        model.head.classify.weight.fill_(float("nan"))
    exploring = Exploring(("broken", model))
    image = exploring.ask("/api/images?name=x", encoded(0)).json["id"]
    path = f"/api/look/0/{image}"
    assert exploring.ask(path).json["top"] == []
    reply = exploring.ask(f"{path}/without", {"patches": [1], "classes": [0]})
    assert reply.status == 422
    assert "weights are damaged" in reply.error
    exploring.close()


def test_patches_of_a_model_in_half_precision_are_covered() -> None:
    exploring = Exploring(("half", tiny(SMALL).bfloat16()))
    image = exploring.ask("/api/images?name=x", encoded(0)).json["id"]
    found = exploring.ask(f"/api/look/0/{image}/without", {"patches": [1], "classes": [0, 1]})
    exploring.close()
    assert (found.status, len(found.json["chances"])) == (200, 2)


def test_several_labels_per_image() -> None:
    """Each class has its own probability, and its threshold is on the page."""
    model = tiny(SMALL)
    model.provenance |= {"multi_label": True, "thresholds": [0.5, 0.25, 0.5, 0.5, 0.5]}
    exploring = Exploring(("several", model))
    state = exploring.ask("/api/state").json["models"][0]
    assert (state["several"], state["thresholds"][1]) == (True, 0.25)
    image = exploring.ask("/api/images?name=x", encoded(0)).json["id"]
    top = exploring.ask(f"/api/look/0/{image}").json["top"]
    images = vitlab.preprocess(model)(encoded(0))
    expected = np.sort(model(images)[0].sigmoid().detach().numpy())[::-1]
    assert [each["probability"] for each in top] == pytest.approx(expected.tolist(), abs=1e-6)
    exploring.close()
    model.provenance["temperature"] = -1  # damaged: refused before anything is shown
    with pytest.raises(vitlab.UserError, match="temperature"):
        Shown.of("odd", model, torch.device("cpu"))


def test_attention_that_is_too_much_to_keep() -> None:
    """A model of 4,096 patches: 12 layers of 12 heads take 2.4 GB; the first pass leaves it out."""
    with torch.device("meta"):
        large = vitlab.create("ViT-B/16", 3, 1024)
    why = views.why_not(large)
    assert "2.4 GB" in why["attention"]
    assert attention_bytes(tiny(SMALL)) == 4 * 2 * 2 * 17**2
    native = kinds()["native"]  # of at most 12 patches
    assert [attention_bytes(native) // 16, attention_bytes(native, (8, 16)) // 16] == [13**2, 9**2]
    assert why["rollout"] == why["late"] == why["attention"]
    assert set(why.values()) == {"", why["attention"]}
    seen = first_pass(tiny(SMALL), torch.zeros(1, 3, 16, 16), attention=False)
    assert seen.attention == ()
    assert len(seen.look.outputs) == 3


def test_within_a_bound_of_bytes_what_was_used_longest_ago_goes_and_the_newest_stays() -> None:
    kept: Kept[str, Any] = Kept(10)
    for key in "abc":
        kept.put(key, np.zeros(3, np.uint8))
    assert kept.get("a") is not None
    kept.peek("b")  # which is not a use
    kept.put("d", np.zeros(4, np.uint8))
    assert (list(kept), kept.get("b")) == (["c", "a", "d"], None)
    for size in (50, 4):
        kept.put("e", np.zeros(size, np.uint8))
        assert list(kept) == ["e"]


def test_jobs_are_done_in_their_order_and_errors_reach_who_asked() -> None:
    async def ask() -> None:
        worker, done = Worker(), []
        worker.start()

        def fail() -> None:
            raise ValueError("why")

        found = await asyncio.gather(
            worker.do(lambda: done.append(1) or threading.current_thread().name),
            worker.do(fail),
            worker.do(lambda: done.append(2) or 7),
            return_exceptions=True,
        )
        assert (found[0], str(found[1]), found[2]) == ("vitlab-explore", "why", 7)
        assert done == [1, 2]
        worker.stop()
        worker.join(PATIENCE)
        assert not worker.is_alive()

    asyncio.run(ask())


def test_a_job_that_nobody_waits_for_is_not_begun() -> None:
    async def ask() -> None:
        worker, gate, done = Worker(), threading.Event(), []
        worker.start()
        first = asyncio.create_task(worker.do(gate.wait))
        given_up = asyncio.create_task(worker.do(lambda: done.append("given up")))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        gate.set()
        await first
        assert await worker.do(lambda: 3) == 3
        assert done == []
        worker.stop()

    asyncio.run(ask())
