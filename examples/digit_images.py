"""Write a few test images of the digits as PNG files: `python examples/digit_images.py FOLDER`."""

import sys
from pathlib import Path

from PIL import Image

from vitlab.data.open_splits import open_to_learn


def main(folder: Path, count: int = 6) -> None:
    """Write one image of each of the first classes, named after its true class."""
    folder.mkdir(parents=True, exist_ok=True)
    test = open_to_learn("digits").test
    for label in range(count):
        index = int((test.target.values == label).argmax())
        pixels = test.image(index).decode(1)
        Image.fromarray(pixels[..., 0]).save(folder / f"a-{test.classes[label]}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
