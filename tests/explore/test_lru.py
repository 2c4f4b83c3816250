"""What is kept within a bound of bytes."""

from dataclasses import dataclass

from vitlab.explore.lru import Kept


@dataclass(frozen=True)
class Bytes:
    nbytes: int


def test_what_was_used_longest_ago_goes_first() -> None:
    kept: Kept[str, Bytes] = Kept(10)
    for key in "abc":
        kept.put(key, Bytes(3))
    assert kept.get("a") is not None
    kept.peek("b")  # which is not a use
    kept.put("d", Bytes(4))
    assert (list(kept), kept.bytes) == (["c", "a", "d"], 10)
    assert kept.get("b") is None


def test_the_newest_stays_however_large() -> None:
    kept: Kept[str, Bytes] = Kept(10)
    kept.put("a", Bytes(5))
    kept.put("b", Bytes(50))
    assert (list(kept), kept.bytes) == (["b"], 50)
    kept.put("b", Bytes(4))
    assert (len(kept), kept.bytes) == (1, 4)
