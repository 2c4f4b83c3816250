"""The page of results from the folders of studies: claims, verdicts, pictures.

    python benchmarks/result_pages.py runs/positions runs/head …

A study's picture becomes docs/results/NAME.svg, and the figures that claims are about are kept run
by run in docs/results/rows.json. From them every verdict in docs/results.md is made anew. What is
written there by hand below a picture stays; of a study that is run again, read it anew. Rows of one
study may lie in several folders, of which the first gives the picture (`tune`: two tasks).
"""

import argparse
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.studies.claims import Verdict

DOCS = Path(__file__).parent.parent / "docs"
PAGE, ROWS = DOCS / "results.md", DOCS / "results" / "rows.json"
KEPT = ("name", "after", "diverged", "edge")
CLAIMS = ("claim", "here", "difference ± 95%", "the paper's", "seeds to see it")
COUNTS = re.compile(r"(?<=## Counts\n\n).*?(?=\n## )", re.DOTALL)
TABLE = re.compile(r"^\| claim \|.*?(?=^!)", re.DOTALL | re.MULTILINE)  # up to the picture


def result_of(folder: Path) -> dict[str, Any]:
    """Return what a study has found."""
    return dict(json.loads((folder / "campaign.json").read_text())["result"])


def keep(name: str, folders: Sequence[Path]) -> str:
    """Keep a study's rows and picture; return its section with what says how they were made."""
    first = folders[0]
    if (first / "picture.svg").is_file():
        shutil.copyfile(first / "picture.svg", ROWS.parent / f"{name}.svg")
    study = study_named(name)
    shares = {each.key for each in study.columns if each.spread}
    used = {claim.by for claim in study.claims} | shares
    rows = [
        {key: row[key] for key in KEPT}
        | {"values": {key: values for key, values in row["values"].items() if key in used}}
        for folder in folders
        for row in result_of(folder)["rows"]
    ]
    studies = [
        f"{json.dumps(each)}: [\n" + ",\n".join(map(json.dumps, own)) + "\n]"
        for each, own in (stored() | {name: rows}).items()
    ]
    ROWS.write_text("{\n" + ",\n".join(studies) + "\n}\n")
    title, *how = (first / "results.md").read_text().split("\n\n")[:3]
    return "\n\n".join([f"#{title}\n{how[0]}", *how[1:], ""])


def stored() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the studies, by their names."""
    return dict(json.loads(ROWS.read_text()))


def study_named(name: str) -> Any:
    """Return a study."""
    from vitlab.studies.papers import study_named as named

    return named(name)


def lines_of(name: str) -> list[tuple["Verdict", tuple[str, ...]]]:
    """Return the verdicts on a study's claims by the rows that are kept, each with its line."""
    from vitlab.studies.results import claims_table, verdicts

    study = study_named(name)
    found = verdicts(study, stored()[name])
    return list(zip(found, claims_table(study, found), strict=True))


def claims_of(name: str) -> str:
    """Return a study's claims as a table, and how many rates are at the edge of those tried."""
    from vitlab.studies.claims import UNTESTED
    from vitlab.studies.results import markdown

    lines = [line for _, line in lines_of(name)]
    one = len({source.partition(",")[0] for _, source, *_ in lines}) == 1  # the section names it
    table, left = [], []
    for claim, source, here, difference, theirs, margin, _, seeds in lines:
        named = f"{claim} ({source.rpartition(', ')[2] if one else source})"
        within = f", margin {margin}" if margin else ""
        if here == UNTESTED:
            left.append(named)
        else:
            table.append((named, here, difference + within, theirs, seeds))
    columns = [cells for cells in zip(CLAIMS, *table, strict=True) if any(cells[1:])]
    head, *body = zip(*columns, strict=True)
    at_edge, rows = sum(bool(row["edge"]) for row in stored()[name]), len(stored()[name])
    notes = [f"{UNTESTED.capitalize()}: {'; '.join(left)}."] if left else []
    notes += (
        [f"{at_edge} of {rows} rows chose a rate at the edge of those tried."] if at_edge else []
    )
    return f"{markdown(head, body)}\n" + "".join(f"{note}\n\n" for note in notes)


def counts() -> str:
    """Return how many claims have which verdict: those of the seeds, and of other papers."""
    from vitlab.studies.results import markdown

    found = [verdict for name in stored() for verdict, _ in lines_of(name)]
    of_seeds, others = (
        Counter(each.word for each in found if each.claim.of_seeds is own) for own in (True, False)
    )
    words = sorted({*of_seeds, *others}, key=lambda word: (-of_seeds[word] - others[word], word))
    lines = [(word, f"{of_seeds[word]}", f"{others[word]}") for word in words]
    lines.append(("in all", f"{of_seeds.total()}", f"{others.total()}"))
    return markdown(("verdict", "papers that ViTLab rebuilds", "other papers"), lines)


def judged_again(text: str) -> str:
    """Return the page with the verdicts of its rows in place of those that it has."""
    parts = COUNTS.sub(lambda _: counts(), text).split("\n## ")
    for number, part in enumerate(parts):
        if found := re.search(r"\(results/(.*?)\.svg\)", part):
            parts[number] = TABLE.sub(lambda _, name=found[1]: claims_of(name), part)  # type: ignore[misc]
    return "\n## ".join(parts)


def main() -> None:
    """Keep the studies in the folders that are named, then make all verdicts anew."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*")
    text, folders = PAGE.read_text(), defaultdict[str, list[Path]](list)
    for folder in parser.parse_args().folders:
        folders[result_of(folder)["study"]].append(folder)
    for name, own in folders.items():
        how = keep(name, own)
        heading = how.partition("\n")[0]
        if f"\n{heading}\n" not in text:
            parser.error(f"{PAGE} has no section {heading!r}: write it, with its picture, first")
        before, _, rest = text.partition(f"{heading}\n")
        text = before + how + rest[rest.index("| claim |") :]
        print(heading.removeprefix("## "))
    PAGE.write_text(judged_again(text))


if __name__ == "__main__":
    main()
