"""Turns, and places in the queue."""

import pytest

from serve.made import figure, tiny
from vitlab.errors import BusyError
from vitlab.serve.decoders import Rounds
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits


def test_each_in_turn_and_in_order() -> None:
    rounds: Rounds[str, int] = Rounds()
    for key, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        rounds.push(key, item)
    assert (len(rounds), list(rounds)) == (6, ["a", "b", "c"])
    assert [rounds.pop() for _ in range(4)] == [1, 4, 5, 2]
    assert rounds.pop("a") == 3
    assert rounds.pop() == 6
    assert len(rounds) == 0


class Places:
    """An engine whose places are taken without anything being computed."""

    def __init__(self, *names: str) -> None:
        self.engine = Engine(limits=Limits(queue=20, max_batch=1), device="cpu")
        self.engine._started = True
        for name in names:
            self.engine.add(name, tiny())

    def admitted(self, images: int, name: str) -> bool:
        try:
            self.engine.check(images, name, "classes")
        except BusyError:
            return False
        return True

    def take(self, images: int, name: str) -> None:
        self.engine._hold(self.engine._registry.find(name), images)


def test_no_model_takes_all_places() -> None:
    """Two crowds and one lone request: the places are never exceeded, and some are always left."""
    places = Places("a", "b", "c")
    held = dict.fromkeys("abc", 0)
    while came := [key for key in "ab" if places.admitted(1, key)]:
        places.take(1, came[0])
        held[came[0]] += 1
    assert held == {"a": 13, "b": 4, "c": 0}
    assert places.admitted(3, "c")
    assert not places.admitted(4, "c")
    assert figure(places.engine, "images_shed_total", model="c") == 4


def test_a_model_alone_may_take_all_places() -> None:
    places = Places("a")
    places.take(4, "a")
    assert places.admitted(16, "a")
    assert not places.admitted(17, "a")


@pytest.mark.parametrize("held", [0, 1])
def test_a_lone_request_is_tried_whatever_the_pace_was(held: int) -> None:
    """A pace that one stalled batch has left behind would refuse everything for ever."""
    places = Places("a")
    places.engine._registry.find("a").trunk.pace = 1000.0
    places.take(held, "a")
    assert places.admitted(1, "a") is (held == 0)
