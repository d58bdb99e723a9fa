"""Whole reports, for each story. Rewrite with ``pytest --update-golden`` and review the difference."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import reviewed
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports import FORMATS, render
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.words import name_in_words

GOLDEN = Path(__file__).parents[2] / "golden"
TRACES = [story for story in STORIES if story.startswith("trace_")]
# A reproducer's golden file is no .py, so that the linters leave generated code alone.
SUFFIXES = {
    "html": "html",
    "json": "json",
    "junit": "xml",
    "markdown": "md",
    "reproducer": "py.txt",
    "sarif": "sarif",
    "text": "txt",
}
IN_EVERY_FORMAT = ("gain_with_findings", "hostile_names", "reproducible_round_trips", "trace_with_round_trips")
FILES = [
    (story, report_format)
    for story in STORIES
    for report_format in SUFFIXES
    if report_format in ("json", "markdown", "text") or story in IN_EVERY_FORMAT
]


@for_each(("story", "report_format"), FILES)
def test_report_is_as_reviewed(story: str, report_format: str, update_golden: bool) -> None:
    report = render(STORIES[story](), report_format)
    if report_format == "html":
        report = reviewed.without_library(report)  # the same megabyte in every page
    if report_format == "json":
        report = json.dumps(json.loads(report), indent=1, ensure_ascii=False) + "\n"  # so that a change can be reviewed
    path = GOLDEN / f"{story}.{SUFFIXES[report_format]}"
    if update_golden:
        path.write_text(report, encoding="utf-8")

    assert report == path.read_text(encoding="utf-8")


def test_every_golden_file_is_compared_and_every_format_has_one() -> None:
    expected = {f"{story}.{SUFFIXES[report_format]}" for story, report_format in FILES}
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))

    assert {path.name for path in GOLDEN.iterdir() if path.is_file() and path.suffix != ".py"} == expected
    assert SUFFIXES.keys() == set(FORMATS)
    assert [path.stem for path in reviewed.FOLDER.iterdir() if f'"{path.stem}"' not in tests] == []


@for_each("story", [story for story in STORIES if story not in TRACES])
def test_counts_in_the_table_add_up_to_the_conversions_of_the_record(story: str) -> None:
    diagnosis = STORIES[story]()
    rows = {row.cells[0]: row for row in build_view(diagnosis).tables[0].rows}

    for trial in (trial for trial in diagnosis.trials if trial.status == "ok"):
        cell = rows[name_in_words(trial.name)].cells[1 if trial.is_static else 3]  # a static table has no times
        counts = re.findall(r"(\d+) (?:activation|weight|gradient|other)", cell)
        assert sum(map(int, counts)) == len(counted_conversions(trial))


@for_each("story", TRACES)
def test_the_tables_of_a_trace_add_up_to_the_conversions_of_its_kernel_list(story: str) -> None:
    diagnosis = STORIES[story]()
    (trial,) = diagnosis.trials

    for table in build_view(diagnosis).tables:
        column = table.head.index("conversions")
        assert sum(int(row.cells[column]) for row in table.rows) == trial.kernels.conversion_count


@for_each("story", ["usual", "gain_with_findings", "tie", "training", "noisy", "reproducible_round_trips"])
def test_a_usual_model_fits_on_one_screen(story: str) -> None:
    lines = render(STORIES[story](), "text").splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


@for_each("story", STORIES)
def test_one_number_has_one_source(story: str) -> None:
    diagnosis = STORIES[story]()
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    default = diagnosis.baseline.measurement.median_seconds if ratios else 0.0

    for ratio in ratios:
        seconds = diagnosis.trial(ratio.name).measurement.median_seconds
        assert seconds == pytest.approx(default / ratio.median, rel=0.015)
