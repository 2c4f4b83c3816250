"""From a run folder to its report, of whatever version the folder is."""

import json
from pathlib import Path

import numpy as np
import torch

import vitlab
from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.evaluation.infer import Predictions
from vitlab.evaluation.metrics import figures
from vitlab.report.gather import points, write_report
from vitlab.runs.run_folder import RunFolder


def line(step: int, loss: float, kind: str = "train") -> str:
    return json.dumps(
        {"kind": kind, "step": step, "epoch": float(step), "loss": loss, "accuracy": 0.5}
    )


def test_a_folder_with_the_least_that_a_run_leaves(tmp_path: Path) -> None:
    """Neither survey, device, majority rate nor intervals; a ResNet, which has no attention."""
    made = vitlab.create("BiT-R50x1", classes=10, image_size=32, channels=1, stages=(1, 1, 1, 1))
    source = open_to_learn("digits").test
    generator = np.random.default_rng(0)
    table = torch.from_numpy(generator.normal(size=(40, 10))).softmax(-1).numpy()
    labels = SingleLabels(source.labels.values[:40])
    done = Predictions(table, labels, np.arange(40), {}, 1.0)
    (tmp_path / "run.toml").write_text('[run]\ncommand = "x"\n[versions]\n[data]\ndata = "y/z"\n')
    lines = [line(1, 2.0), line(2, 1.5), *(line(step, 1.0) for step in range(3, 6))]
    lines += [line(2, 1.75), line(2, 1.25, "test")]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    metrics = figures(table, labels)
    page = write_report(RunFolder(tmp_path), made, source, done, metrics, ["a note"]).read_text()
    assert " on z</bdi></h1>" in page
    assert "Loss against epoch: training 1; test 1.25." in page
    drawn = points(RunFolder(tmp_path).journal.read(), ("train",))
    assert [each.loss for each in drawn] == [2.0, 1.75, 1.0, 1.0, 1.0]  # step 2 was taken again
    assert f"{(table.argmax(1) == labels.values).mean():.1%} of 40 test images correct" in page
    assert '<section id="mistakes"' in page
    inside = page.split('<details id="inside"')[1].split("</details>")[0]
    assert "Token similarity" in inside
    assert inside.count('class="lens whole"') == 2 * 4  # the photo and the colors of four images
    assert "vitlab inspect RUN IMAGE… --out inside" in inside
    for word in ("Attention", "head", "Positions"):
        assert word not in inside
    assert 'id="attention"' not in page
    assert "By guessing" not in page
