"""Damaged images are counted once each; the messages about the first hundred are kept."""

import json

import vitlab
from vitlab.optim.optimizers import build
from vitlab.training.damage import MOST, DamagedImages
from vitlab.training.state import Checkpoint, RunState


def some(count: int) -> DamagedImages:
    found = DamagedImages()
    for is_new in (True, False):
        for number in range(count):
            assert found.note(f"{number}.jpg: cut off") == is_new
    return found


def test_each_is_counted_once_and_the_first_hundred_are_named() -> None:
    few, many = some(3), some(1234)
    assert (len(few), len(many)) == (3, 1234)
    assert few.lines() == [f"skipped: {number}.jpg: cut off" for number in range(3)]
    assert len(many.texts) == MOST
    assert many.lines()[-1].startswith("skipped: 1,134 more damaged images")
    assert len(many.lines()) == MOST + 1


def test_a_checkpoint_keeps_them_and_older_ones_have_a_list_of_messages() -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=1,mlp=16)/8", classes=2, image_size=16)
    optimizer = build(model, vitlab.recipe("digits").optimizer)
    state = RunState(model, None, optimizer)
    state.tally.bad = some(200)
    saved = state.checkpoint()
    kept = json.loads(json.dumps(saved.state))
    other = RunState(model, None, optimizer)
    for said, count in ((kept, 200), (kept | {"bad": ["a.jpg: empty", "b.jpg: empty"]}, 2)):
        other.restore(Checkpoint(saved.tensors, said))
        assert len(other.tally.bad) == count
    assert not other.tally.bad.note("b.jpg: empty")
    assert other.tally.bad.note("c.jpg: empty")
