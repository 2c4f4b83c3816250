"""Numbers for people, and the times they type."""

import math
from collections.abc import Callable

import pytest

from vitlab.errors import OptionError
from vitlab.terminal import main_figures, print_figures, print_wide, readable
from vitlab.units import duration, epochs, percent, seconds, si, storage

WORDS: list[tuple[Callable[[float], str], dict[float, str]]] = [
    (percent, {
        0: "0.0%", 1: "100.0%", 0.5: "50.0%", 0.9996: "> 99.9%", 0.9994: "99.9%",
        0.0004: "< 0.1%", 0.0006: "0.1%", math.nan: "not finite", math.inf: "not finite",
    }),
    (si, {
        0: "0", 842: "842", 1200: "1.2 k", 5717416: "5.7 M", 17.5e9: "17.5 G", 2e12: "2.0 T",
        999949: "999.9 k", 999950: "1.0 M", 3.5: "3.5", math.nan: "not finite",
    }),
    (storage, {
        5: "5 bytes", 999: "999 bytes", 1000: "1 kB", 512e6: "512 MB", 1.44e9: "1.4 GB",
        999.4e6: "999 MB", 999.5e6: "999.5 MB", 999.96e6: "1.0 GB",
    }),
    (duration, {
        0: "0.0 s", 2.44: "2.4 s", 9.94: "9.9 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min 0 s",
        100: "1 min 40 s", 3599.6: "1 h 0 min", 11100: "3 h 5 min", 3719: "1 h 2 min",
        math.inf: "not finite",
    }),
    (epochs, {
        0.25: "0.25 epochs", 1.0: "1 epoch", 1.112: "1.11 epochs", 4000.4: "4,000 epochs",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("said", "table"), WORDS, ids=lambda each: getattr(each, "__name__", ""))
def test_numbers_in_words(said: Callable[[float], str], table: dict[float, str]) -> None:
    assert {number: said(number) for number in table} == table


def test_times_that_people_type() -> None:
    known = {"": 0, "90s": 90, "20m": 1200, "1.5 h": 5400, "2h": 7200, " 1d ": 86_400}
    assert {text: seconds(text) for text in known} == known
    for text in ("20", "m", "-3m", "0s", "0.0h", "20 minutes", "1e3s", "5ms"):
        with pytest.raises(OptionError, match="budget must be a time such as 90s, 20m or 2h, not"):
            seconds(text)


def test_the_rows_of_a_table() -> None:
    figures = {"accuracy": 0.5, "params": 5_717_416, "bytes": 2000, "peak_memory": 3e9}
    figures |= {"latency": 0.0123, "seconds": 61, "nll": 0.12345, "images_per_second": 1234.5}
    rows = readable({**figures, "notes": ["x"], "images": 1438, "model": "ViT-B/16"})
    assert rows == [
        ("accuracy", "50.0%"),
        ("params", "5.72 M"),
        ("size", "2 kB"),
        ("peak memory", "3.0 GB"),
        ("latency", "12.30 ms"),
        ("time", "1 min 1 s"),
        ("NLL", "0.1235"),
        ("images/s", "1,234"),
        ("images", "1,438"),
        ("model", "ViT-B/16"),
    ]


def test_intervals_stand_behind_their_figures() -> None:
    figures = {"accuracy": 0.9886, "macro_f1": 0.5, "nll": 0.12345, "map": None, "images": 300}
    intervals = {"accuracy": [0.9806, 1.0], "nll": [0.1, 0.2]}
    rows = readable({**figures, "intervals": intervals, "classes": [{"class": "a"}]})
    assert rows == [
        ("accuracy", "98.9% (98.1 to 100.0)"),
        ("macro F1", "50.0%"),
        ("NLL", "0.1235 (0.1000 to 0.2000)"),
        ("images", "300"),
    ]


def test_a_run_prints_the_figures_that_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"accuracy": 0.5, "mcc": 0.2, "auroc": 0.9, "nll": 1.5, "images": 300}
    print_figures(main_figures(figures))
    words = capsys.readouterr().out.split()
    assert [each for each in words if each.isalpha()][2:] == ["accuracy", "NLL", "images"]


def test_top5_of_at_most_five_classes_is_not_printed() -> None:
    for count in (0, 5, 6):
        figures = {"top5": 1.0, "nll": 0.5, "classes": [{"class": str(n)} for n in range(count)]}
        assert [name for name, _ in readable(figures)] == ["top-5 accuracy", "NLL"][count <= 5 :]
    assert [name for name, _ in readable({"top5": 1.0, "classes": 3})] == [
        "top-5 accuracy",
        "classes",
    ]


def test_what_did_not_happen_is_not_in_the_table() -> None:
    assert readable({"damaged": 0, "skipped_steps": 0, "rollbacks": 0}) == []
    told = readable({"skipped_steps": 1200, "rollbacks": 1, "trained_on": 3})
    assert told == [("skipped steps", "1,200"), ("rollbacks", "1"), ("test images trained on", "3")]


def test_columns_that_do_not_fit_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, rows = (
        ["name", "accuracy", "seconds"],
        [("a row", "91.2%", "123"), ("b", "5.0%", "7")],
    )
    print_wide(head, rows)
    assert "123" in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    monkeypatch.setenv("COLUMNS", "28")
    print_wide(head, rows)
    out = capsys.readouterr().out
    assert "a row" in out
    assert "91.2%" in out
    assert "123" not in out
    assert out.splitlines()[-1] == "too wide for this terminal, and in the report: seconds"
