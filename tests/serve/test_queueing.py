"""Turns, and places in the queue."""

from vitlab.serve.decoders import Rounds, admitted


def test_each_in_turn_and_in_order() -> None:
    rounds: Rounds[int] = Rounds()
    for key, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        rounds.push(key, item)
    assert (len(rounds), list(rounds), list(rounds.line("a"))) == (6, ["a", "b", "c"], [1, 2, 3])
    assert [rounds.pop() for _ in range(4)] == [1, 4, 5, 2]
    assert rounds.pop("a") == 3
    assert rounds.clear("b") == [6]
    assert rounds.clear("b") == []
    assert len(rounds) == 0
    assert not rounds.line("a")


def test_no_model_takes_all_places() -> None:
    """Two crowds and one lone request: the places are never exceeded, and some are always left."""
    held = dict.fromkeys("abc", 0)
    while True:
        came = [key for key in "ab" if admitted(1, held[key], sum(held.values()), 20, False)]
        if not came:
            break
        held[came[0]] += 1
    assert held == {"a": 13, "b": 4, "c": 0}
    assert admitted(3, 0, 17, 20, False)
    assert not admitted(4, 0, 17, 20, False)


def test_a_model_alone_may_take_all_places() -> None:
    assert admitted(16, 4, 4, 20, True)
    assert not admitted(16, 4, 4, 20, False)
    assert admitted(20, 0, 0, 20, False)
    assert not admitted(17, 4, 4, 20, True)
