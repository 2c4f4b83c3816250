"""The model that a delta is based on: which one it is, and where it was."""

from dataclasses import dataclass

from vitlab.images import Size


@dataclass(frozen=True)
class DeltaBase:
    """The model that a delta needs, and where it was.

    Attributes:
        fingerprint: the result of `fingerprint(model)`
        name: the papers' notation, ViT-B/16
        source: the argument of `vitlab.load`, if known
        commit: of a model from the Hugging Face Hub
        nearby: the source relative to the delta's folder, if it was a file or folder
        classes: outputs of its classifier
        image_size: its input, in pixels
    """

    fingerprint: str
    name: str
    source: str | None
    commit: str | None
    nearby: str | None
    classes: int
    image_size: Size

    def __str__(self) -> str:
        place = f"{self.source}, " if self.source else ""
        return f"{self.name} ({place}fingerprint {self.fingerprint[:12]})"
