"""Where each of several processes begins."""

import pytest

from vitlab.data.sources.tar_shards import place_among, turned


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, 0),
        ({"RANK": "0"}, 0),
        ({"SLURM_ARRAY_TASK_ID": "1"}, 0.618),
        ({"JOB_COMPLETION_INDEX": "2"}, 0.236),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_PROCID": "2"}, 0.854),
        ({"RANK": "1", "SLURM_PROCID": "1"}, 0.618),
        ({"RANK": "of nobility"}, 0),
    ],
)
def test_processes_begin_at_different_places(environment: dict[str, str], place: float) -> None:
    assert place_among(environment) == pytest.approx(place, abs=1e-3)


def test_every_item_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = []
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        own = turned(range(100))
        assert sorted(own) == list(range(100))
        begins.append(own[0])
    gaps = [b - a for a, b in zip(sorted(begins), [*sorted(begins)[1:], 100], strict=True)]
    assert begins[0] == 0
    assert max(gaps) < 20
