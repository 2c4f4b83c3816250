"""Images of any kind as the bytes of a file, without loss."""

from io import BytesIO
from typing import cast

from PIL import Image

from vitlab.data.decode.colors import recolored
from vitlab.data.decode.pixels import as_image
from vitlab.data.decode.stored import EncodedImage, PixelImage
from vitlab.data.sources.pictures import Picture, PillowImage, stored
from vitlab.errors import ImageError

# Modes of Pillow that a PNG holds as they are. Others are sent as what the package reads in them.
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def encoded(picture: Picture, name: str) -> bytes:
    """Return an image as a file: itself if it is one, else a PNG of the same pixels.

    Args:
        picture: as `vitlab.preprocess` takes it
        name: for messages

    Raises:
        ImageError: it cannot be read, or is nothing that can be an image.
    """
    image = stored(picture, name)
    if isinstance(image, EncodedImage):
        if not image.data:
            raise ImageError(f"{name}: the file is empty")
        return image.data
    if isinstance(image, PillowImage):
        return png(_plain(image.picture, name))
    pixels = cast(PixelImage, image).pixels
    return png(as_image(pixels))


def png(image: Image.Image) -> bytes:
    """Return a PNG of an image in one of `PNG_MODES`.

    Compression is the fastest: on a local network the sender's time costs more than the bytes.
    """
    stream = BytesIO()
    image.save(stream, "PNG", compress_level=1, exif=b"", icc_profile=None)
    return stream.getvalue()


def _plain(image: Image.Image, name: str) -> Image.Image:
    """Return an image in a mode that a PNG holds."""
    if image.mode in PNG_MODES:
        return image
    try:
        channels = 4 if image.has_transparency_data else 3
        return Image.fromarray(recolored(image, channels))
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from None
