"""TIFF by Pillow without its metadata: tags that no pixel depends on are not looked at.

Pillow stumbles over resolutions that are texts, and over directories of EXIF or GPS at places that
no file has; both are no damage of the picture.
"""

from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from vitlab.data.decode.metadata import ORIENTATION

# Of TIFF 6.0 and its supplements: sides, samples, colors, compression, strips and tiles, JPEG.
NEEDED = frozenset({
    256, 257, 258, 259, 262, 266, 273, ORIENTATION, 277, 278, 279, 280, 281, 284, 292, 293, 317,
    320, 322, 323, 324, 325, 326, 327, 328, 332, 334, 338, 339, 340, 341, 347, 512, 513, 514, 515,
    517, 518, 519, 520, 521, 529, 530, 531, 532, 0xBC01,
})  # fmt: skip


class PlainTiff(TiffImageFile):
    """Pillow's reader, for which a file has no tags but those that pixels need."""

    def _setup(self) -> None:
        for tag in [each for each in self.tag_v2 if each not in NEEDED]:
            del self.tag_v2[tag]
        self.info.pop("xmp", None)
        super()._setup()

    def getexif(self) -> Image.Exif:
        """Return the orientation alone: Pillow turns a TIFF by it after decoding."""
        exif = Image.Exif()
        value = self.tag_v2.get(ORIENTATION, 1)
        exif[ORIENTATION] = value if value in range(2, 9) else 1
        return exif
