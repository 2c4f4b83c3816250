"""One checksum of everything that decides some features: the name of their place in the cache."""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version

from torch.utils.data import Dataset

from vitlab.data.loading.loader import choose_workers, in_order
from vitlab.data.loading.order import slice_of
from vitlab.data.sources.protocol import Source
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.probes.extraction import Extraction
from vitlab.weights.identity import feature_fingerprint

CHUNK = 256  # images whose checksum is one number
PACKAGES = ("vitlab", "torch", "numpy", "pillow", "simplejpeg")  # they decide the numbers too


def key_of(extraction: Extraction, world: World) -> str:
    """Return a checksum of everything that decides the features, in hexadecimal.

    That is the bytes of every image, the weights and the configuration of the model, which says how
    images are prepared; what is taken, the precision, the kind of device, how many images go
    through the model at once, and the versions of the packages that compute.

    Raises:
        WeightsError: the model is fused.
    """
    parts = {
        "images": _content(extraction, world),
        "count": len(extraction.source),
        "weights": feature_fingerprint(extraction.model),
        "taken": extraction.taken.as_dict(),
        "precision": extraction.precision,
        "device": extraction.device.type,
        "batch": extraction.batch,
        "rows": extraction.rows,
        "versions": {name: version(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _content(extraction: Extraction, world: World) -> str:
    """Return a checksum of all images as they are stored; each process reads its share."""
    chunks = _Chunks(extraction.source)
    own = slice_of(len(chunks), world.rank, world.size)
    workers = choose_workers(extraction.source, extraction.workers, extraction.sharing)
    sums = list(in_order(chunks, own, workers))
    everything = [each for share in world.gather(sums) for each in share]
    return hashlib.sha256("".join(everything).encode()).hexdigest()


@dataclass(frozen=True)
class _Chunks(Dataset[str]):
    source: Source

    def __len__(self) -> int:
        return -(-len(self.source) // CHUNK)

    def __getitem__(self, k: int) -> str:
        digest = hashlib.sha256()
        for index in range(k * CHUNK, min((k + 1) * CHUNK, len(self.source))):
            try:
                image = self.source.image(index)
                content = image.content()
                shape = json.dumps(image.shape()) if self.source.in_memory else ""
            except DataError:  # reported when it is decoded
                content, shape = b"", "unreadable"
            digest.update(f"{len(content)} {shape}\n".encode())
            digest.update(content)
        return digest.hexdigest()
