"""Ray Serve itself: two replicas on this machine, one killed under load. About two minutes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import vitlab

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
def test_a_killed_replica_is_replaced_and_only_its_own_requests_fail(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    vitlab.save(vitlab.create("ViT-Ti/16", classes=3, image_size=64), tmp_path / "small")
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, ROOT / "tests/serve/ray_replicas.py", tmp_path / "small"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    killed = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(killed, indent=1))
    assert set(killed["statuses"]) <= {"200", "500"}
    assert killed["statuses"].get("500", 0) <= 6  # at most what every client had in flight
    assert killed["failed_after"] < 5
    assert killed["back"] < 60
    assert killed["orphans"] == []
