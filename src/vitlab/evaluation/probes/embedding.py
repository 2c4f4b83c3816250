"""`vitlab.embed`: the features of any number of images, in one Parquet file."""

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitlab.data.holdout import fingerprint as mark_of
from vitlab.data.open import open_images
from vitlab.data.pictures.pictures import Picture
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError, DiskError
from vitlab.evaluation.parts.embedded_parts import embed_parts
from vitlab.evaluation.probes.embedding_table import Layout, merge, sound_parts, write_part
from vitlab.evaluation.probes.extraction import Extraction
from vitlab.evaluation.probes.wanted import Taken
from vitlab.files import Lock, tidy, write_text
from vitlab.models.model import Model
from vitlab.packages import check_installed
from vitlab.places import PART, check_new_file, check_parts, is_folder
from vitlab.precision import Engine
from vitlab.progress import Meter, say
from vitlab.weights.identity import feature_fingerprint

PLAN = "plan.json"


def embed(
    model: Model,
    data: Given | Sequence[Picture],
    out: str | Path,
    *,
    what: Literal["features", "mean", "patches", "tokens"] = "features",
    layer: int | None = None,
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    engine: Engine = "auto",
    workers: int | None = None,
    timeout: float = 600.0,
    part_images: int = PART,
) -> dict[str, Any]:
    """Write the features of all images of DATA into a Parquet file, or into a folder of them.

    Its columns are `path` (what the data calls the image), `label` (the name of its class, a list
    of names if images have several, null without labels), `split` and `features` (float32, lists
    of fixed length: of `width` numbers, or of `tokens` lists of them). A row group holds at most
    2,048 images and is all that is in memory; each is written into a hidden folder beside the
    file, so that the same command goes on where a killed one stopped. Under torchrun, the
    processes share the row groups, whose order in the file is that of the data.

    A folder, which is for any number of images and of processes, has a file for each 10,000 images
    or so (`part_images`), with the same columns. Processes on any machines that are given the same
    folder share its parts, under torchrun or not, and any of them may end, be killed or come later.

    Args:
        model: from `vitlab.load` or a run; its device and mode are the same afterwards
        data: as for training, all splits; or images without labels: a folder that holds nothing
            else, an image file, or a glob pattern of them; or images in memory, labeled as for
            `vitlab.evaluate` or not
        out: the file, which must not exist yet; a name without an ending, or that of a folder, is
            that of a folder of parts, new or unfinished
        what: features: what the classifier sees; mean: the mean of the patch tokens; patches: each
            patch token, row by row; tokens: class token and registers too
        layer: the block (of a ResNet: stage) whose output is taken, 0 for the input of the first
            one; None for the last one, after the final norm
        columns: which columns of a list or a table hold what; None to find them
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; or bf16, whose features are less exact, so that nothing chooses it
        engine: auto: the fastest for many images, or where processes share them the packed form;
            or one by its name, as `vitlab.accelerate`
        workers: processes that decode; None to choose
        timeout: seconds that a process waits for the others
        part_images: images of a part, of a folder; rounded up to whole row groups, of at most 1 GiB

    Returns:
        In the first process: out, images, damaged, shape (of one image's features), model, bytes,
        seconds, images_per_second and notes; nothing in the others. Damaged images are left out;
        `notes` and the file's metadata (`vitlab.damaged`) name them. Of a folder, also `parts`, and
        `own_parts` and `own_images`, which this process has computed.

    Raises:
        OptionError: a layer of what the classifier sees, or one that the model does not have.
        DataError: no such data, no usable image, or an unfinished file of something else.
        DiskError: the file exists, or cannot be written.
        UnfinishedError: other processes have the parts that are left, and took too long.
        PackageError: pyarrow is not installed.
    """
    check_installed("pyarrow", "vitlab embed")
    begin, taken = time.monotonic(), Taken(what=what, layer=layer)
    parted, out = is_folder(out), Path(out).expanduser()
    with joined(device, timeout) as (world, place), ExitStack() as stack:
        with world.agreed():
            check_parts(out) if parted else check_new_file(out)
            alone = world.size == 1 and not parted
            how = (taken, place, precision, workers, world.local_size)
            opened = open_images(data, "optional", columns=columns)
            splits = {
                name: Extraction(model, source, *how, engine=engine, measure=alone)
                for name, source in opened.by_split().items()
            }
        notes = opened.notes
        if "--label-column" in opened.lacks:
            notes = [*notes, f"no labels: {opened.lacks}"]
        if parted:
            for note in notes if world.first else ():
                say(note)
            return embed_parts(out, splits, world, part_images, timeout)
        with world.agreed():
            work = _Work.of(splits, out)
            if world.first:
                stack.enter_context(work.prepared())
        images = work.run(world)
        if not world.first:
            return {}
        figures = work.merged_into(out)
    seconds = time.monotonic() - begin
    about = next(iter(splits.values())).form.about
    figures["notes"] = notes + figures["notes"]
    return figures | about | {"seconds": seconds, "images_per_second": images / seconds}


@dataclass(frozen=True)
class _Work:
    """The parts of a file, and where they are kept until it is complete."""

    splits: dict[str, Extraction]
    layout: Layout
    drafts: Path

    @classmethod
    def of(cls, splits: dict[str, Extraction], out: Path) -> "_Work":
        """Work out what the file will look like."""
        first = next(iter(splits.values()))
        about = {
            "model": first.model.config.name,
            "weights": feature_fingerprint(first.model),
            "data": {name: mark_of(each.source) for name, each in splits.items()},
            **first.taken.as_dict(),
            "precision": first.precision,
            "rows": first.rows,
        }
        several = first.source.labels.several
        return cls(splits, Layout(first.shape, several, about), out.with_name(f".{out.name}.parts"))

    @property
    def names(self) -> list[str]:
        """The name of each part, in order."""
        return [
            f"{split}-{number:06d}"
            for split, extraction in self.splits.items()
            for number in range(extraction.parts)
        ]

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Hold the folder of the parts, and create it or check that they belong to this file."""
        plan, text = self.drafts / PLAN, json.dumps(self.layout.about, indent=1)
        out = self.drafts.name.removeprefix(".").removesuffix(".parts")
        with Lock(self.drafts / "_lock", "let no other process write this file").held() as mine:
            if not mine:
                raise DiskError(f"another process is writing {out}: choose another --out")
            tidy(self.drafts.parent, re.escape(out))
            if not plan.exists():
                write_text(plan, text)
            if plan.read_text(encoding="utf-8") != text:
                raise DataError(
                    f"{self.drafts} holds the parts of an unfinished file of other weights, data "
                    "or options: delete that folder, or choose another --out"
                )
            yield

    def run(self, world: World) -> int:
        """Compute the missing parts, all processes together; return the number of images."""
        there = sound_parts(self.drafts) if world.first else {}
        todo = world.broadcast([n for n, name in enumerate(self.names) if name not in there])
        try:
            with world.agreed():
                if not (self.drafts / PLAN).is_file():
                    raise DiskError(
                        f"process {world.rank} cannot see {self.drafts}: choose an --out on "
                        "storage shared by all machines"
                    )
                images = self._compute(set(todo[world.rank :: world.size]), world)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped; run the same command again to continue") from None
        return world.sums(images)[0]

    def _compute(self, own: set[int], world: World) -> int:
        """Write some parts; return their number of images."""
        first = done = 0
        images = sum(len(each.source) for each in self.splits.values())
        total = images * len(own) // len(self.names)
        with Meter(total, title="embedding", shown=world.first) as meter:
            for split, extraction in self.splits.items():
                before = done
                numbers = [n for n in range(extraction.parts) if first + n in own]

                def progress(images: int, before: int = before) -> None:
                    meter.show(before + images, "images")

                for piece in extraction.pieces(numbers, progress):
                    table = self.layout.table(piece, extraction.source, split)
                    write_part(self.drafts, self.names[first + piece.number], table)
                    done += len(piece.indices) + len(piece.bad)
                first += extraction.parts
        return done

    def merged_into(self, out: Path) -> dict[str, Any]:
        """Put the parts together; return what the file holds."""
        there = sound_parts(self.drafts)
        if lost := [name for name in self.names if name not in there]:
            raise DiskError(f"{self.drafts} has lost {lost[0]}: run the same command again")
        try:
            rows, bad = merge([there[name] for name in self.names], self.layout, out)
        except DataError:  # not one image can be used: nothing to go on with
            shutil.rmtree(self.drafts, ignore_errors=True)
            raise
        shutil.rmtree(self.drafts, ignore_errors=True)
        return {
            "out": str(out),
            "images": rows,
            "damaged": len(bad),
            "shape": list(self.layout.shape),
            "model": self.layout.about["model"],
            "bytes": out.stat().st_size,
            "notes": [f"skipped: {message}" for message in bad],
        }
