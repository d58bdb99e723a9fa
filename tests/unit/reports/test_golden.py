"""Whole reports, for each story and each format. Rewrite with ``pytest --update-golden`` and review the difference."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import reviewed
from golden.stories import STORIES, TRACE_STORIES
from loops import for_each

from layoutdoctor.diagnosis.saved import from_json
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.privacy import scrub
from layoutdoctor.reports import RENDERERS, render
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.words import name_in_words

GOLDEN = Path(__file__).parents[2] / "golden"
MODEL_STORIES = [story for story in STORIES if story not in TRACE_STORIES]
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
MOST_BYTES = 3_500_000


@for_each("report_format", RENDERERS)
@for_each("story", STORIES)
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


def test_every_golden_file_belongs_to_a_story() -> None:
    expected = {f"{story}.{suffix}" for story in STORIES for suffix in SUFFIXES.values()}

    assert {path.name for path in GOLDEN.iterdir() if path.is_file() and path.suffix != ".py"} == expected


def test_every_reviewed_file_is_compared_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))

    assert [path.stem for path in reviewed.FOLDER.iterdir() if f'"{path.stem}"' not in tests] == []


def test_every_format_has_golden_files() -> None:
    assert SUFFIXES.keys() == RENDERERS.keys()


def test_the_golden_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < MOST_BYTES


@for_each("story", MODEL_STORIES)
def test_counts_in_the_table_add_up_to_the_conversions_of_the_record(story: str) -> None:
    diagnosis = STORIES[story]()
    rows = [line for line in render(diagnosis, "markdown").splitlines() if line.startswith("| ")]

    for trial in (t for t in diagnosis.trials if t.status == "ok"):
        columns, conversions = (4, 2) if trial.is_static else (7, 4)  # a static table has no times
        name = name_in_words(trial.name)
        (row,) = [row for row in rows if row.split("|")[1].strip() == name and row.count("|") == columns]
        shown = sum(
            int(count)
            for count in re.findall(r"(\d+) (?:activation|weight|gradient|other)", row.split("|")[conversions])
        )
        assert shown == len(counted_conversions(trial))


@for_each("story", TRACE_STORIES)
def test_the_tables_of_a_trace_add_up_to_the_conversions_of_its_kernel_list(story: str) -> None:
    diagnosis = TRACE_STORIES[story]()
    (trial,) = diagnosis.trials

    for table in build_view(diagnosis).tables:
        column = table.head.index("conversions")
        assert sum(int(row.cells[column]) for row in table.rows) == trial.kernels.conversion_count


@for_each("story", ["usual", "gain_with_findings", "tie", "training", "noisy", "wasted_in_the_default"])
def test_a_usual_model_fits_on_one_screen(story: str) -> None:
    lines = render(STORIES[story](), "text").splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


@for_each("story", STORIES)
def test_one_number_has_one_source(story: str) -> None:
    diagnosis = STORIES[story]()
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    default = diagnosis.baseline.measurement.median_seconds if diagnosis.baseline is not None else 0.0

    for ratio in ratios:
        assert diagnosis.trial(ratio.name).measurement.median_seconds == pytest.approx(
            default / ratio.median, rel=0.015
        )


@for_each("story", STORIES)
def test_a_report_has_none_of_our_old_words(story: str) -> None:
    text = render(STORIES[story](), "text").lower()

    assert re.search(r"\b(undecided|told|anew|by way of)\b", text) is None


@for_each("story", STORIES)
def test_json_is_the_record_itself(story: str) -> None:
    diagnosis = STORIES[story]()

    assert from_json(render(diagnosis, "json").encode()) == scrub(diagnosis)
    assert (scrub(diagnosis) == diagnosis) == (story != "hostile_names")  # which has a setting that nobody knows
    assert json.loads(render(diagnosis, "json"))["schema_version"] == 1
