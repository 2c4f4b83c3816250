"""Facts of reports of runs without labels that no run has made."""

import numpy as np

from vitlab.models.model import PartCost
from vitlab.report.facts import Point, RunFacts

COLUMNS = ("image", "masked", "agreement", "decoded")


def a_run(task: str = "beit", side: int = 64, points: int = 60) -> RunFacts:
    """Facts of a run of BEiT, or of another task, with two figures and a probe."""
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 0.03, points)
    training = [
        Point(
            10 * i, i / 4, {
                "loss": 3 + 5 / (1 + i / 8) + noise[i], "lr": 1e-3 * (1 - i / points),
                "agreement": i / (2 * points), "spread_of_answers": 2.0 + noise[i],
            },
        )
        for i in range(points)
    ]  # fmt: skip
    testing = [
        Point(
            10 * i, i / 4, {
                "loss": 3.2 + 5 / (1 + i / 8), "probe": 0.2 + i / (3 * points),
                "agreement": i / (2.2 * points), "spread_of_answers": 2.1,
            },
        )
        for i in range(4, points, 8)
    ]  # fmt: skip
    pixels = generator.integers(0, 256, (6, side, side, 3), np.uint8)
    return RunFacts(
        model="ViT-Ti/4",
        run={
            "command": "vitlab pretrain 'my photos' --task beit", "fingerprint": "abcdef0123456789",
            "started": "2026-03-04T05:06:07+00:00",
        },
        figures={
            "task": task, "loss": 3.7512, "agreement": 0.421, "spread_of_answers": 2.1,
            "images": 45_000, "held_out": 1024, "probe": 0.4876, "params": 5_674_410,
            "macs": 361_620_416, "images_per_second": 1383.0, "peak_memory": 446_865_408,
            "seconds": 4062.4, "model": "ViT-Ti/4", "device": "cpu", "run": "runs/my run",
        },
        training=training,
        testing=testing,
        held_out="held-out",
        pictures=dict.fromkeys(COLUMNS, pixels),
        cost=[PartCost("stem", 100, 1000), PartCost("attention", 5000, 90_000)],
        recipe={
            "recipe": {"epochs": 15, "seed": 17, "batch": 1024, "precision": "fp32"},
            "data": {"data": "some/my photos"},
            "pretext": {"task": task, "mask_ratio": 0.4, "target": "mean-color",
                        "tokenizer": "runs/tokens"},
            "start": {"weights": ""},
        },
        versions={"torch": "2.13.0"},
        notes=["skipped: a.png is damaged", "the stem of this model mixes patches"],
    )  # fmt: skip
