"""Whole reports of compared diagnoses. Rewrite with ``pytest --update-golden`` and review the difference."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from golden.comparison_stories import COMPARISON_STORIES
from loops import for_each

from layoutdoctor.diagnosis.comparison import ModelComparison
from layoutdoctor.examination.changes.models import compare_models
from layoutdoctor.reports.overviews import COMPARISON_FORMATS, render_comparison

GOLDEN = Path(__file__).parents[2] / "golden" / "comparisons"
SUFFIXES = {"json": "json", "markdown": "md", "text": "txt"}


@for_each("report_format", COMPARISON_FORMATS)
@for_each("story", COMPARISON_STORIES)
def test_comparison_is_as_reviewed(story: str, report_format: str, update_golden: bool) -> None:
    report = render_comparison(compare_models(*COMPARISON_STORIES[story]()), report_format)
    if report_format == "json":
        report = json.dumps(json.loads(report), indent=1, ensure_ascii=False) + "\n"  # so that a change can be reviewed
    path = GOLDEN / f"{story}.{SUFFIXES[report_format]}"
    if update_golden:
        path.write_text(report, encoding="utf-8")

    assert report == path.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_story() -> None:
    expected = {f"{story}.{suffix}" for story in COMPARISON_STORIES for suffix in SUFFIXES.values()}

    assert {path.name for path in GOLDEN.iterdir()} == expected


@for_each("story", COMPARISON_STORIES)
@for_each("width", [80, 100, 140])
def test_no_line_is_too_wide_or_ends_in_a_space(story: str, width: int) -> None:
    lines = render_comparison(compare_models(*COMPARISON_STORIES[story]()), "text", width).splitlines()

    assert not [line for line in lines if len(line) > width or line != line.rstrip()]


@for_each("story", COMPARISON_STORIES)
def test_the_json_is_the_comparison_itself(story: str) -> None:
    comparison = compare_models(*COMPARISON_STORIES[story]())

    assert msgspec.json.decode(render_comparison(comparison, "json"), type=ModelComparison) == comparison
