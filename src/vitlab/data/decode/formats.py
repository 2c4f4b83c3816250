"""The formats of image files: their names and endings, their first bytes, and Pillow's readers.

AVIF is part of most builds of Pillow. HEIF, the photographs of iPhones (.heic), needs the package
pillow-heif, which has libheif; without it such files are named with the package that reads them.
"""

import importlib.util
from collections import Counter

from PIL.AvifImagePlugin import SUPPORTED, AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.packages import install, needed

HEIF_PACKAGE = "pillow_heif"
KNOWN = {
    "JPEG": ("jpg", "jpeg"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp",),
    "TIFF": ("tif", "tiff"),
    "AVIF": ("avif",),
    "HEIF": ("heic", "heif", "hif"),
}
_MISSING = {"AVIF": not SUPPORTED, "HEIF": importlib.util.find_spec(HEIF_PACKAGE) is None}
ENDINGS = {kind: endings for kind, endings in KNOWN.items() if not _MISSING.get(kind)}
"""Of the formats that can be read here."""

FORMATS = tuple(ENDINGS)
SUFFIXES = frozenset(f".{ending}" for endings in ENDINGS.values() for ending in endings)
"""File endings in lower case, with their dot."""

SHOWN = 3  # endings that a line lists
CLIPS = {
    **dict.fromkeys((".wav", ".flac", ".ogg"), "soundfile"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"), "av"),
}
"""Endings of what is read like pictures where there are none, and the package that reads it."""

READABLE = frozenset(each for each in CLIPS if importlib.util.find_spec(CLIPS[each]))

_SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
_BRANDS = {
    "AVIF": {b"avif", b"avis"},
    "HEIF": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"},
}
_MOST_BRANDS = 64
_READERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "TIFF": TiffImageFile,
    "AVIF": AvifImageFile,
}


def format_of(data: bytes) -> str:
    """Return the format by the file's first bytes; empty if it is none of `KNOWN`."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":  # ISO/IEC 14496-12: the major brand, its version, compatible brands
        end = min(int.from_bytes(data[:4], "big"), 4 * _MOST_BRANDS)
        brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
        return next((name for name, own in _BRANDS.items() if brands & own), "")
    return next((name for name, starts in _SIGNATURES.items() if data.startswith(starts)), "")


def reader_of(kind: str) -> type[ImageFile]:
    """Return Pillow's reader of a format.

    Raises:
        PackageError: it is that of a package that is not installed.
    """
    if kind != "HEIF":
        return _READERS[kind]
    package = needed(HEIF_PACKAGE, "reading HEIC photographs", "convert them to JPEG")
    reader: type[ImageFile] = package.HeifImageFile
    return reader


def unread_lines(place: str, endings: Counter[str], alone: bool = False) -> list[str]:
    """Return lines about files that may be images but cannot be read, by their endings.

    Args:
        place: where they are
        endings: how many files have which ending, in lower case with its dot
        alone: whether there are no images beside them, so that sounds and films would be read
    """
    packages = {f".{each}": HEIF_PACKAGE for each in KNOWN["HEIF"]} | (CLIPS if alone else {})
    named = {each: count for each, count in endings.items() if each in packages}
    lines = [
        f"skipped {count:,} {ending} file{'s' * (count != 1)} in {place}: "
        f"{install(packages[ending])} reads {ending}"
        for ending, count in sorted(named.items())
    ]
    # sorted: of equally many, a folder lists one or another first
    others = Counter({each: endings[each] for each in sorted(endings) if each not in named})
    if others:
        shown = ", ".join(f"{count:,} with {ending}" for ending, count in others.most_common(SHOWN))
        more = ", …" if len(others) > SHOWN else ""
        lines.append(
            f"skipped {others.total():,} file{'s' * (others.total() != 1)} in {place}, not images "
            f"in a supported format ({shown}{more}): convert what is an image to JPEG or PNG"
        )
    return lines
