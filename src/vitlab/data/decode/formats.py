"""The formats of image files: their names and endings, their first bytes, and Pillow's readers.

AVIF is part of most builds of Pillow. HEIF, the photographs of iPhones (.heic), needs the package
pillow-heif, which has libheif; without it such files are named with the package that reads them.

A listed ending only says that a file is to be read as an image; which format it has, its first
bytes say (`format_of`). A file with an ending that is in no table, or without one, is an image if
its first bytes are those of one (`is_image_file`).
"""

import importlib.util
import os
import re
import stat
from collections import Counter
from pathlib import Path

from PIL.AvifImagePlugin import SUPPORTED, AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.data.decode.tiff import PlainTiff
from vitlab.packages import install, needed

HEIF_PACKAGE = "pillow_heif"
KNOWN = {
    # of Windows, of browsers, of stereo cameras, and of what was saved from Twitter
    "JPEG": ("jpg", "jpeg", "jpe", "jif", "jfif", "jfi", "pjpeg", "pjp", "mpo", "jps",
             *(f"jpg{sign}{size}" for sign in "_:-" for size in ("large", "orig", "medium",
                                                                 "small", "thumb")),
             "jpeg_large", "jpeg_orig"),
    "PNG": ("png", "apng", "png_large", "png_orig", "png:large", "png:orig"),
    "WEBP": ("webp",),
    "GIF": ("gif", "giff"),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff", "btf", "tf8", "gtif", "gtiff", "geotif", "geotiff"),
    "AVIF": ("avif", "avifs"),
    "HEIF": ("heic", "heif", "hif", "heics", "heifs"),
}  # fmt: skip
"""Endings of the files that are read, the usual ones of a format first; any may hold any format."""

UNREAD = {
    "Netpbm": ("ppm", "pgm", "pbm", "pnm", "pam", "pfm"),
    "JPEG 2000": ("jp2", "j2k", "j2c", "jpc", "jpf", "jpx", "jpm", "jph"),
    "JPEG XL": ("jxl",),
    "JPEG XR": ("jxr", "wdp", "hdp"),
    "Targa": ("tga", "icb", "vda"),
    "camera raw": ("dng", "cr2", "cr3", "crw", "nef", "nrw", "arw", "sr2", "srf", "srw", "orf",
                   "rw2", "raf", "pef", "3fr", "erf", "kdc", "mrw", "x3f", "iiq"),
    "DICOM": ("dcm", "dicom"),
    "NIfTI": ("nii",),
    "FITS": ("fits", "fts"),
    "OpenEXR": ("exr",),
    "DirectDraw": ("dds",),
    "SVG": ("svg", "svgz"),
    "Photoshop": ("psd", "psb"),
    "GIMP": ("xcf",),
    "icon": ("ico", "cur", "icns"),
    "PCX": ("pcx",),
    "SGI": ("sgi",),
    "Sun raster": ("ras",),
    "QOI": ("qoi",),
    "metafile": ("wmf", "emf"),
}  # fmt: skip
"""Endings of images in formats that are not read: each format is another decoder to trust."""

UNREAD_CLIPS = {
    "sound": ("mp3", "m4a", "aac", "wma", "aif", "aiff", "aifc", "amr", "au", "caf", "ape"),
    "film": ("mpg", "mpeg", "wmv", "asf", "flv", "m2ts", "ogv", "vob", "3gpp"),
}
_ADVICE = {
    "camera raw": "export as JPEG or TIFF",
    "DICOM": "save what is to be learned from as PNG",
    "NIfTI": "save the slices as PNG",
    "FITS": "save as PNG",
    "SVG": "render as PNG",
    "Photoshop": "export as PNG",
    "GIMP": "export as PNG",
    "sound": "convert to FLAC or WAV",
    "film": "convert to MP4 or MKV",
}
_MISSING = {"AVIF": not SUPPORTED, "HEIF": importlib.util.find_spec(HEIF_PACKAGE) is None}
ENDINGS = {kind: endings for kind, endings in KNOWN.items() if not _MISSING.get(kind)}
"""Of the formats that can be read here."""

FORMATS = tuple(ENDINGS)
SUFFIXES = frozenset(f".{ending}" for endings in ENDINGS.values() for ending in endings)
"""Endings, in lower case and with their dot, of files that are read as images."""

USUAL_SUFFIXES = tuple(sorted(f".{endings[0]}" for endings in ENDINGS.values()))
"""One of each format, for lines that name what is read."""

LISTED = {
    f".{ending}": kind
    for table in (KNOWN, UNREAD, UNREAD_CLIPS)
    for kind, endings in table.items()
    for ending in endings
}
"""The format that an ending promises, of images that are read or not, and clips that are not."""

SHOWN = 3  # endings that a line lists
CLIPS = {
    **dict.fromkeys((".wav", ".wave", ".flac", ".ogg", ".oga", ".opus"), "soundfile"),
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2", ".mkv", ".webm", ".avi"), "av"),
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
_UNREAD_SIGNATURES = {
    "JPEG 2000": (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a"),
    "JPEG XR": (b"II\xbc\x01",),
    "camera raw": (b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"FUJIFILMCCD-RAW", b"FOVb"),
    "OpenEXR": (b"v/1\x01",),
    "DirectDraw": (b"DDS ",),
    "FITS": (b"SIMPLE  =",),
    "SVG": (b"<svg",),
    "Photoshop": (b"8BPS",),
    "GIMP": (b"gimp xcf",),
    "icon": (b"\0\0\1\0", b"icns"),
    "QOI": (b"qoif",),
}  # fmt: skip
_NETPBM = re.compile(rb"P[1-7Ff]\s")
_MOST_BRANDS = 64
HEAD = 4 * _MOST_BRANDS
"""Bytes at the start of a file that decide what it is."""

_BMP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})  # bytes, of its second header
_READERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "TIFF": PlainTiff,
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


def image_kind(first_bytes: bytes) -> str:
    """Return which format of images a file has by its first bytes, read here or not.

    Stricter than `format_of`, which is asked about files that are images by their name or place: a
    text that begins with "BM" is no BMP, and a camera's raw file is none of TIFF.

    Args:
        first_bytes: of the file; `HEAD` of them are enough, 32 for most

    Returns:
        A key of `KNOWN` or `UNREAD`; empty if it is none of them. Targa, PCX, metafiles and others
        without a signature are not recognized.
    """
    kind = format_of(first_bytes)
    if kind == "BMP":
        return kind if int.from_bytes(first_bytes[14:18], "little") in _BMP_HEADERS else ""
    if kind == "TIFF" and first_bytes[8:10] == b"CR":  # Canon's
        return "camera raw"
    if kind:
        return kind
    if first_bytes[4:12] == b"ftypcrx ":
        return "camera raw"
    if first_bytes[128:132] == b"DICM":
        return "DICOM"
    if _NETPBM.match(first_bytes):
        return "Netpbm"
    found = (kind for kind, starts in _UNREAD_SIGNATURES.items() if first_bytes.startswith(starts))
    return next(found, "")


def file_kind(path: str | Path) -> str:
    """Return which format of images a file has by its content, as `image_kind`.

    Devices, pipes, sockets and folders are never read from; a link is followed.

    Returns:
        Empty, too, where that is not a regular file or cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return ""
        file = os.open(path, flags)  # a pipe that takes its place now is not waited for
    except (OSError, ValueError):
        return ""
    try:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return image_kind(os.read(file, HEAD)) if regular else ""
    except OSError:
        return ""
    finally:
        os.close(file)


def is_image_file(path: str | Path) -> bool:
    """Return whether a file is an image that can be read here, by its content, whatever its ending.

    For files whose ending is in no table (`SUFFIXES`, `CLIPS`, `LISTED`), or that have none. Of
    each, a few bytes are read.
    """
    return file_kind(path) in FORMATS


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
    left = {each: endings[each] for each in sorted(endings) if each not in named}
    for kind, known in {**UNREAD, **(UNREAD_CLIPS if alone else {})}.items():
        own = Counter({f".{each}": left.pop(f".{each}") for each in known if f".{each}" in left})
        if own:
            lines.append(_unread_line(place, kind, own))
    if others := Counter(left):
        lines.append(
            f"skipped {others.total():,} file{'s' * (others.total() != 1)} in {place}, not images "
            f"in a supported format ({_most_common(others)}): convert what is an image to JPEG or "
            "PNG"
        )
    return lines


def advice(kind: str) -> str:
    """Return what to do with files of a format that is not read; empty if it is read."""
    usual = "" if kind not in UNREAD else "convert to JPEG or PNG"
    return _ADVICE.get(kind, usual)


def _unread_line(place: str, kind: str, endings: Counter[str]) -> str:
    """The line about files of a format that is not read."""
    noun = {"sound": "sound", "film": "film"}.get(kind, f"{kind} image")
    return (
        f"skipped {endings.total():,} {noun}{'s' * (endings.total() != 1)} in {place} "
        f"({_most_common(endings)}), a format that is not read: {advice(kind)}"
    )


def _most_common(endings: Counter[str]) -> str:
    """The endings that most files have, with their numbers."""
    shown = ", ".join(f"{count:,} with {ending}" for ending, count in endings.most_common(SHOWN))
    return shown + (", …" if len(endings) > SHOWN else "")
