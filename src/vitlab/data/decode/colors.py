"""Decoded images of any mode to 8-bit gray, RGB or RGBA."""

from collections.abc import Iterator
from numbers import Real

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from vitlab.data.decode.pixels import Pixels, as_image
from vitlab.errors import ImageError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GRAY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
SAMPLES = "vitlab samples"  # in `Image.info`: what `note_samples` notes
UNKNOWN = 0, False
_BAND = 2**20  # pixels that Pillow exports at a time


def recolored(image: Image.Image, channels: int) -> Pixels:
    """Return the pixels of a decoded image of any mode in gray, RGB or RGBA.

    It is done in bands, because Pillow makes up to three copies of what it converts and exports.

    Args:
        image: decoded
        channels: 1, 3 or 4

    Returns:
        A new array of shape (rows, columns, channels).

    Raises:
        ImageError: other channels, or numbers outside the range that can be read.
    """
    if channels not in MODES:
        raise ImageError(f"{channels} channels; pictures have 1, 3 or 4")
    if image.mode == "RGBA" and image.format == "BMP" and not image.getchannel("A").getbbox():
        image = image.convert("RGB")  # an alpha that is 0 throughout was never written
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    top = 0
    excess = _excess(image)
    for part in _bands(image):
        own = np.asarray(_recolor(part, channels, excess))
        pixels[top : top + part.height] = own.reshape(-1, image.width, channels)
        top += part.height
    return pixels


def note_samples(image: Image.Image, origin: Image.Image) -> None:
    """Keep with an image what its file says of its samples, which copies of it then have, too.

    The bits of a TIFF are those of the largest sample that it says it may have, or has.

    Args:
        image: of any mode
        origin: as Pillow's reader opened it
    """
    bits, inverted = UNKNOWN
    if isinstance(origin, TiffImageFile):
        tags = origin.tag_v2
        largest = tags.get(341, tags.get(281, 0))  # SMaxSampleValue, MaxSampleValue
        largest = max(largest) if isinstance(largest, tuple) else largest
        known = isinstance(largest, Real) and 0 < float(largest) < 2**32
        bits = 12 if tags.get(258) == (12,) else int(float(largest)).bit_length() if known else 0
        inverted = tags.get(262) == 0  # Pillow inverts only up to 8 bits
    image.info[SAMPLES] = bits, inverted


def drop_odd_transparency(image: Image.Image) -> None:
    """Drop a transparent color of a type that Pillow's readers do not give, and cannot apply."""
    key = image.info.get("transparency")
    match image.mode:
        case "P" | "PA":
            fits = isinstance(key, bytes) or (isinstance(key, int) and 0 <= key < 256)
        case "RGB":
            whole = isinstance(key, tuple) and all(isinstance(each, int) for each in key)
            fits = isinstance(key, tuple) and whole and len(key) == 3
        case _:
            fits = isinstance(key, int)
    if not fits:
        image.info.pop("transparency", None)


def _bands(image: Image.Image) -> Iterator[Image.Image]:
    """The image in parts of whole rows, from the top."""
    band = max(1, _BAND // image.width)
    for top in range(0, image.height, band):
        whole = band >= image.height
        bottom = min(top + band, image.height)
        yield image if whole else image.crop((0, top, image.width, bottom))


def _excess(image: Image.Image) -> int:
    """Return how many low bits of an image's integers are dropped to bring them to 8.

    Raises:
        ImageError: they are outside the range, or so small that the image would be black.
    """
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return 0
    used, (bits, _) = 0, image.info.get(SAMPLES, UNKNOWN)
    for part in _bands(image):
        used |= int(np.bitwise_or.reduce(np.asarray(part), axis=None))
    if 0 <= used < 2**bits:
        return max(bits - 8, 0)
    if not 0 <= used <= 65535:
        low, high = image.getextrema()
        raise ImageError(
            f"integers from {low} to {high}; only 0 to 65535 is supported: convert them first"
        )
    if 0 < used < 256:
        raise ImageError(
            f"integers of 16 or 32 bits that are at most {image.getextrema()[1]}, so black: save "
            "it with 8 bits, or as a TIFF with the range in the file (SMaxSampleValue)"
        )
    return 8


def _recolor(image: Image.Image, channels: int, excess: int) -> Image.Image:
    """Bring a part of an image to L, RGB or RGBA."""
    wanted = MODES[channels]
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bits(image, excess)
    elif image.mode == "La":
        image = image.convert("LA")  # the only conversion that Pillow has from it
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if channels < 4:
            opaque = Image.new("RGB", image.size, "white")
            opaque.paste(image, mask=image)
            image = opaque
    elif image.mode not in MODES.values():
        image = image.convert("RGB")  # Pillow converts some modes to nothing else
    return image if image.mode == wanted else image.convert(wanted)


def _to_8_bits(image: Image.Image, excess: int) -> Image.Image:
    """Bring integers of 12, 16 or 32 bits, or floats, to L, or LA if one gray is transparent."""
    values = np.asarray(image)
    if image.mode == "F":
        low = values.min()
        high = values.max()
        if not (low >= -1 and high <= 2):  # nor if it is NaN
            raise ImageError(
                f"floats from {low} to {high}; only 0 to 1 is supported: convert to 8 bits first"
            )
        gray = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
    else:
        gray = (values >> excess).astype(np.uint8)
    if image.info.get(SAMPLES, UNKNOWN)[1]:
        gray = 255 - gray
    result = Image.fromarray(gray)
    key = image.info.get("transparency")
    if isinstance(key, int):
        alpha = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))
        result = Image.merge("LA", (result, alpha))
    return result


def convert(pixels: Pixels, channels: int) -> Pixels:
    """Bring 8-bit gray or RGB pixels, (rows, columns, 1 or 3), to other channels."""
    return pixels if pixels.shape[2] == channels else recolored(as_image(pixels), channels)
