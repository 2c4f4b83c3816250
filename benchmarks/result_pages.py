"""The pages of docs/results from the folders of studies, and the papers' claims on one page.

    python benchmarks/result_pages.py runs/positions runs/head …

Each study's table, verdicts and picture become docs/results/NAME.md and NAME.svg; the paragraph
below the heading "What it shows" is written by hand and stays. The figures that claims are about
are kept run by run in rows.json. From them every verdict is made anew, on the pages and in the
tables of docs/results/README.md.
"""

import argparse
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.studies.claims import Verdict

PAGES = Path(__file__).parent.parent / "docs" / "results"
ROWS = "rows.json"
SHOWS = "## What it shows\n"
COUNTS = "## Counts\n"
KEPT = ("name", "after", "diverged", "edge")


def page(folder: Path) -> str:
    """Write the page of a study and keep its rows; return its name."""
    result = json.loads((folder / "campaign.json").read_text())["result"]
    name = str(result["study"])
    text = (folder / "results.md").read_text().replace("(picture.svg)", f"({name}.svg)")
    if (folder / "picture.svg").is_file():
        shutil.copyfile(folder / "picture.svg", PAGES / f"{name}.svg")
    place = PAGES / f"{name}.md"
    before = place.read_text() if place.is_file() else ""
    said = before[before.index(SHOWS) :] if SHOWS in before else f"{SHOWS}\n"
    place.write_text(f"{text.rstrip()}\n\n{said}")
    used = {claim.by for claim in study_named(name).claims} | {"accuracy"}
    rows = [
        {key: row[key] for key in KEPT}
        | {"values": {key: values for key, values in row["values"].items() if key in used}}
        for row in result["rows"]
    ]
    write_rows(stored() | {name: rows})
    return name


def stored() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the studies, by their names."""
    return dict(json.loads((PAGES / ROWS).read_text()))


def write_rows(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Keep the rows of the studies, one in each line."""
    studies = [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, own)) + "\n]"
        for name, own in rows.items()
    ]
    (PAGES / ROWS).write_text("{\n" + ",\n".join(studies) + "\n}\n")


def study_named(name: str) -> Any:
    """Return a study."""
    from vitlab.studies.papers import study_named as named

    return named(name)


def lines_of(name: str) -> list[tuple["Verdict", tuple[str, ...]]]:
    """Return the verdicts on a study's claims by the rows that are kept, each with its line."""
    from vitlab.studies.results import claims_table, verdicts

    study = study_named(name)
    found = verdicts(study, stored().get(name, []))
    return list(zip(found, claims_table(study, found), strict=True))


def judged_again(name: str) -> str:
    """Return a page with the verdicts of its rows in place of those that it has."""
    from vitlab.studies.results import CLAIMS, markdown

    lines = (PAGES / f"{name}.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| claim |"))
    last = first + len(list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:])))
    table = markdown(CLAIMS, [line for _, line in lines_of(name)]).rstrip()
    return "\n".join([*lines[:first], table, *lines[last:]]) + "\n"


def claims() -> str:
    """Return the tables of all claims: how many have which verdict, then those of each origin."""
    from vitlab.studies.papers import STUDIES
    from vitlab.studies.results import CLAIMS, markdown

    linked = {name: f"[{name}]({name}.md)" for name in STUDIES}
    every = [
        (verdict, (linked[name], *line)) for name in STUDIES for verdict, line in lines_of(name)
    ]
    of_seeds = [(verdict, line) for verdict, line in every if verdict.claim.of_seeds]
    others = [(verdict, line) for verdict, line in every if not verdict.claim.of_seeds]
    head, text = ("study", *CLAIMS), f"{COUNTS}\n{_counts(of_seeds, others)}"
    for title, part in (
        ("Claims of the papers that ViTLab rebuilds", of_seeds),
        ("Claims of other papers", others),
    ):
        text += f"\n## {title}\n\n{markdown(head, [line for _, line in part])}"
    return text


def _counts(*parts: Iterable[tuple["Verdict", tuple[str, ...]]]) -> str:
    from vitlab.studies.results import markdown

    words = [Counter(verdict.word for verdict, _ in part) for part in parts]
    every = sorted(set().union(*words), key=lambda word: -sum(part[word] for part in words))
    lines = [(word, *(f"{part[word]}" for part in words)) for word in every]
    lines.append(("in all", *(f"{part.total()}" for part in words)))
    return markdown(("verdict", "papers that ViTLab rebuilds", "other papers"), lines)


def main() -> None:
    """Write the pages of the studies in the folders that are named, then all verdicts anew."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*")
    for folder in parser.parse_args().folders:
        print(page(folder))
    for name in stored():
        (PAGES / f"{name}.md").write_text(judged_again(name))
    whole = PAGES / "README.md"
    lead = whole.read_text().partition(COUNTS)[0].rstrip()
    whole.write_text(f"{lead}\n\n{claims()}")


if __name__ == "__main__":
    main()
