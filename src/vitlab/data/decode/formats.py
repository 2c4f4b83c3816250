"""The image formats that are read: their names, file endings and first bytes."""

ENDINGS = {
    "JPEG": ("jpg", "jpeg"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp",),
    "TIFF": ("tif", "tiff"),
}
FORMATS = tuple(ENDINGS)
SUFFIXES = frozenset(f".{ending}" for endings in ENDINGS.values() for ending in endings)
"""File endings in lower case, with their dot."""

_SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}


def format_of(data: bytes) -> str:
    """Return the format by the file's first bytes; empty if it is none of `FORMATS`."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return next((name for name, starts in _SIGNATURES.items() if data.startswith(starts)), "")
