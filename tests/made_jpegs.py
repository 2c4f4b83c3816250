"""One picture as every kind of JPEG that a decoder distinguishes."""

from io import BytesIO

import numpy as np
from PIL import Image

ROWS, COLUMNS = 150, 203
PICTURE = Image.fromarray(
    np.random.default_rng(4).integers(0, 256, (10, 13, 3), np.uint8), "RGB"
).resize((COLUMNS, ROWS), Image.Resampling.BICUBIC)


def save(image: Image.Image = PICTURE, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, "JPEG", **({"quality": 92} | options))
    return stream.getvalue()


def oriented(number: int) -> bytes:
    exif = Image.Exif()
    exif[274] = number
    return save(exif=exif.tobytes())


KINDS = {
    "4:4:4": save(subsampling="4:4:4"),
    "4:2:2": save(subsampling="4:2:2"),
    "4:2:0": save(subsampling="4:2:0"),
    "4:1:1": save(subsampling="4:1:1"),
    "progressive": save(progressive=True),
    "gray": save(PICTURE.convert("L")),
    "cmyk": save(PICTURE.convert("CMYK")),
    "rgb": save(keep_rgb=True),
    "restarts": save(restart_marker_rows=1),
    "low quality": save(quality=5, subsampling="4:2:0"),
} | {f"turned {number}": oriented(number) for number in range(2, 9)}
