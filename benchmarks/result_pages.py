"""The pages of docs/results from the folders of studies, and the papers' claims on one page.

    python benchmarks/result_pages.py runs/positions runs/head …

Each study's table, verdicts and picture become docs/results/NAME.md and NAME.svg; the paragraph
below the heading "What it shows" is written by hand and stays. The table of
docs/results/README.md lists the claims of all studies: what their pages say, or "not run".
"""

import argparse
import itertools
import json
import shutil
from importlib import import_module
from pathlib import Path

PAGES = Path(__file__).parent.parent / "docs" / "results"
SHOWS = "## What it shows\n"
TABLE = "| claim | study | here | difference ± 95% |"
CLAIMS = "| claim | here | difference ± 95% |"


def page(folder: Path) -> str:
    """Write the page of a study; return its name."""
    name = study_in(folder)
    text = (folder / "results.md").read_text()
    for file in folder.glob("picture*.svg"):
        own = file.name.replace("picture", name)
        shutil.copyfile(file, PAGES / own)
        text = text.replace(f"({file.name})", f"({own})")
    place = PAGES / f"{name}.md"
    before = place.read_text() if place.is_file() else ""
    said = before[before.index(SHOWS) :] if SHOWS in before else f"{SHOWS}\n"
    place.write_text(f"{text.rstrip()}\n\n{said}")
    return name


def claims() -> str:
    """Return the table of all claims, with the verdicts of the pages that there are."""
    from vitlab.studies.study_names import GRIDS, STUDIES

    lines = [TABLE, "| --- | --- | --- | --- |"]
    for name in GRIDS:
        study = import_module(f"vitlab.studies.{STUDIES[name].module}").STUDY
        place = PAGES / f"{name}.md"
        judged = judged_in(place.read_text()) if place.is_file() else {}
        linked = f"[{name}]({name}.md)" if place.is_file() else f"`{name}`"
        for claim in study.claims:
            verdict, difference = judged.get(claim.text, ("not run", ""))
            lines.append(f"| {claim.text} | {linked} | {verdict} | {difference} |")
    return "\n".join(lines) + "\n"


def study_in(folder: Path) -> str:
    """Return the name of the study in a folder."""
    return str(json.loads((folder / "campaign.json").read_text())["result"]["study"])


def judged_in(text: str) -> dict[str, tuple[str, str]]:
    """Return the verdict on each claim, and the difference, as a study has written them."""
    if CLAIMS not in text:
        return {}
    lines = text.split(CLAIMS)[1].splitlines()[2:]
    rows = itertools.takewhile(lambda line: line.startswith("| "), lines)
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {claim: (verdict, "".join(rest)) for claim, verdict, *rest in cells}


def main() -> None:
    """Write the pages of the studies in the folders that are named, then that of the claims."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*")
    for folder in parser.parse_args().folders:
        print(page(folder))
    whole = PAGES / "README.md"
    lead = whole.read_text().split("| claim |")[0].rstrip()
    whole.write_text(f"{lead}\n\n{claims()}")


if __name__ == "__main__":
    main()
