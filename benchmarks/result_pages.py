"""The pages of docs/results from the folders of studies, and the papers' claims on one page.

    python benchmarks/result_pages.py runs/positions runs/head …

Each study's table, verdicts and picture become docs/results/NAME.md and NAME.svg; the paragraph
below the heading "What it shows" is written by hand and stays. The table of
docs/results/README.md lists the claims of all studies: what the runs say, or "not run".
"""

import argparse
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "results"
SHOWS = "## What it shows\n"
TABLE = "| claim | study | here | difference |"


def page(folder: Path) -> str:
    """Write the page of a study; return its name."""
    name = json.loads((folder / "campaign.json").read_text())["result"]["study"]
    text = (folder / "results.md").read_text()
    if (folder / "picture.svg").is_file():
        shutil.copyfile(folder / "picture.svg", PAGES / f"{name}.svg")
        text = text.replace("(picture.svg)", f"({name}.svg)")
    place = PAGES / f"{name}.md"
    before = place.read_text() if place.is_file() else ""
    said = before[before.index(SHOWS) :] if SHOWS in before else f"{SHOWS}\n"
    place.write_text(f"{text.rstrip()}\n\n{said}")
    return str(name)


def claims(folders: list[Path]) -> str:
    """Return the table of all claims."""
    from vitlab.studies.study_names import GRIDS, STUDIES

    results = [json.loads((folder / "campaign.json").read_text())["result"] for folder in folders]
    known = {result["study"]: result["claims"] for result in results}
    lines = [TABLE, "| --- | --- | --- | --- |"]
    for name in GRIDS:
        study = import_module(f"vitlab.studies.{STUDIES[name].module}").STUDY
        found = {each["claim"]: each for each in known.get(name, ())}
        linked = f"[{name}]({name}.md)" if name in known else f"`{name}`"
        for claim in study.claims:
            lines.append(f"| {claim.text} | {linked} | {_verdict(found.get(claim.text))} |")
    return "\n".join(lines) + "\n"


def _verdict(claim: dict[str, Any] | None) -> str:
    if claim is None:
        return "not run | "
    if claim["difference"] is None:
        return f"{claim['verdict']} | "
    reach = "" if claim["interval"] is None else f" ± {claim['interval']:.2g}"
    return f"{claim['verdict']} | {claim['difference']:+.3g}{reach}"


def main() -> None:
    """Write the pages of the studies in the folders that are named, then that of the claims."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    folders = parser.parse_args().folders
    for folder in folders:
        print(page(folder))
    whole = PAGES / "README.md"
    lead = whole.read_text().split(TABLE)[0].rstrip()
    whole.write_text(f"{lead}\n\n{claims(folders)}")


if __name__ == "__main__":
    main()
