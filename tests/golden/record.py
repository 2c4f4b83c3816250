"""`python tests/golden/record.py [GROUP …]` records the lines anew, where a change is meant."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.lines import GROUPS
from golden.recording import EXPECTED, prepare, record


def main(groups: list[str]) -> None:
    """Record groups; what is no longer recorded goes."""
    prepare()
    for group in groups or GROUPS:
        folder = EXPECTED / group
        folder.mkdir(parents=True, exist_ok=True)

        def write(name: str, text: str, seconds: float, folder: Path = folder) -> None:
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            print(f"{seconds:6.1f} CPU seconds  {folder.name}/{name}", flush=True)

        texts = record(group, write)
        for file in folder.glob("*.txt"):
            if file.stem not in texts:
                file.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
