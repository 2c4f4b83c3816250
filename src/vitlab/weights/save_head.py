"""Writing a head into the folder of a run, with the checksums of it and of its model."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file

from vitlab.files import DETECT, REGRESS, SEGMENT, staged_file
from vitlab.models.heads.detect import Detector
from vitlab.models.heads.regress import Regressor
from vitlab.models.heads.segment import Segmenter
from vitlab.weights.identity import checksum, checksums, fingerprint

FILES: dict[type, str] = {Detector: DETECT, Segmenter: SEGMENT, Regressor: REGRESS}
"""The file of each kind of head, in a run's folder."""


def save_head(answering: Detector | Segmenter | Regressor, run: Path) -> None:
    """Write what a model finds something in images with into a run, whose model is saved.

    Raises:
        DiskError: it cannot be written.
    """
    tensors = {n: each.detach().cpu().contiguous() for n, each in answering.tensors().items()}
    about = asdict(answering.about)
    about |= {"model": fingerprint(answering.model), "sha256": checksums(tensors)}
    with staged_file(run / FILES[type(answering)]) as draft:
        text = json.dumps(about | {"checksum": checksum(about)})
        save_file(tensors, draft, metadata={"about": text})  # several have no fixed order
