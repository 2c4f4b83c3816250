"""Names of files and folders with a meaning: those that systems add, and those of masks."""

SYSTEM_NAMES = frozenset({
    "__macosx", "@eadir", "@tmp", "#recycle", "@recycle", "@recently-snapshot", "$recycle.bin",
    "system volume information", "lost+found", "__pycache__", "thumbs.db", "ehthumbs.db",
    "desktop.ini", "icon\r", "found.000", "network trash folder", "temporary items",
})  # fmt: skip
"""Files and folders that macOS, Windows, Linux and network drives add, in lower case."""

SYSTEM_PREFIXES = (".", "synophoto_thumb_", "synofile_thumb_", "~$")
"""Beginnings of hidden names, and of thumbnails and locks beside the files of a user."""


def is_system_name(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that a system adds to a user's own."""
    lower = name.lower()
    return lower in SYSTEM_NAMES or lower.startswith(SYSTEM_PREFIXES)


MASK_LAYOUTS = (
    ("images", "masks", 255),
    ("JPEGImages", "SegmentationClass", 255),
    ("images", "annotations", 0),
)
"""Folders of images and of their masks, which are no classes, and the number that masks ignore."""
