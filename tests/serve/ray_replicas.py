"""Two replicas on this machine, one killed under load: run as a program, prints one JSON object."""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx2
import psutil
import ray
from ray import serve

import vitlab
from serve.fakes import png

URL = "http://127.0.0.1:8765"
IMAGE = {"content": png(size=(200, 160)), "headers": {"content-type": "image/png"}}


@dataclass
class Load:
    """Clients that ask again and again for some seconds; at most one request each at a time."""

    clients: int
    seconds: float
    answers: list[tuple[float, float, int, str]] = field(default_factory=list)

    def _client(self) -> None:
        end = time.monotonic() + self.seconds
        with httpx2.Client(timeout=30) as client:
            while (start := time.monotonic()) < end:
                reply = client.post(f"{URL}/predict", **IMAGE)
                took = time.monotonic() - start
                self.answers.append((start, took, reply.status_code, reply.text))
                time.sleep(0.02)

    def begin(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._client) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        return threads

    def counts(self) -> dict[int, int]:
        return dict(Counter(status for _, _, status, _ in self.answers))


def replicas() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if "ServeReplica" in " ".join(each.info["cmdline"] or [])]


def running() -> int:
    about = serve.status().applications["default"].deployments["vitlab"]
    return int(about.replica_states.get("RUNNING", 0))


def killed() -> dict[str, object]:
    """Kill a replica under load."""
    load = Load(clients=6, seconds=25)
    threads = load.begin()
    while len(load.answers) < 20:  # it is under way
        time.sleep(0.05)
    victim = replicas()[0]
    children = victim.children(recursive=True)
    when = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    while running() == 2 and time.monotonic() - when < 30:
        time.sleep(0.05)
    noticed = time.monotonic() - when
    while running() < 2 and time.monotonic() - when < 60:
        time.sleep(0.05)
    back = time.monotonic() - when
    for thread in threads:
        thread.join()
    bad = [(start - when, took) for start, took, status, _ in load.answers if status != 200]
    return {
        "statuses": load.counts(),
        "failed_texts": sorted({text for _, _, status, text in load.answers if status != 200}),
        "failed_after": max((start + took for start, took in bad), default=0.0),
        "noticed": noticed,
        "back": back,
        "orphans": [each.pid for each in children if each.is_running()],
    }


def main(weights: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder,
            log_to_driver=False, object_store_memory=100 * 2**20,
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": 8765})
        options = {"ray_actor_options": {"num_cpus": 1}, "health_check_period_s": 1}
        serve.run(vitlab.serve.deployment(weights, options=options | {"num_replicas": 2}))
        result = killed()
        serve.shutdown()
        ray.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
