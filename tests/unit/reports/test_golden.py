"""Whole reports, for each story. Rewrite with ``pytest --update-golden`` and review the difference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import reviewed
from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_finding,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_trial,
    kernels,
)
from golden.stories import STORIES
from reproducer_builders import BUILTIN

from layoutdoctor.diagnosis.answer import WithoutFreezing
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.reports import FORMATS, render
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.words import name_in_words

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

GOLDEN = Path(__file__).parents[2] / "golden"
TRACES = [story for story in STORIES if story.startswith("trace_")]
# A reproducer's golden file is no .py, so that the linters leave generated code alone.
SUFFIXES = {
    "html": "html",
    "json": "json",
    "markdown": "md",
    "reproducer": "py.txt",
    "sarif": "sarif",
    "text": "txt",
}
IN_HTML = ("gain_with_findings", "trace_with_round_trips")
IN_EVERY_OTHER_FORMAT = (*IN_HTML, "hostile_names", "reproducible_round_trips")
FILES = [
    (story, report_format)
    for story in STORIES
    for report_format in SUFFIXES
    if report_format in ("json", "markdown", "text")
    or story in (IN_HTML if report_format == "html" else IN_EVERY_OTHER_FORMAT)
]


@pytest.mark.parametrize(("story", "report_format"), FILES)
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


@pytest.mark.parametrize("story", [story for story in STORIES if story not in TRACES])
def test_counts_in_the_table_add_up_to_the_conversions_of_the_record(story: str) -> None:
    diagnosis = STORIES[story]()
    rows = {row.cells[0]: row for row in build_view(diagnosis).tables[0].rows}

    for trial in (trial for trial in diagnosis.trials if trial.status == "ok"):
        cell = rows[name_in_words(trial.name)].cells[1 if trial.is_static else 3]  # a static table has no times
        counts = re.findall(r"(\d+) (?:activation|weight|gradient|other)", cell)
        assert sum(map(int, counts)) == len(counted_conversions(trial))


@pytest.mark.parametrize("story", TRACES)
def test_the_tables_of_a_trace_add_up_to_the_conversions_of_its_kernel_list(story: str) -> None:
    diagnosis = STORIES[story]()
    (trial,) = diagnosis.trials

    for table in build_view(diagnosis).tables:
        column = table.head.index("conversions")
        assert sum(int(row.cells[column]) for row in table.rows) == trial.kernels.conversion_count


@pytest.mark.parametrize(
    "story", ["usual", "gain_with_findings", "tie", "training", "noisy", "reproducible_round_trips"]
)
def test_a_usual_model_fits_on_one_screen(story: str) -> None:
    lines = render(STORIES[story](), "text").splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def lines_before_the_findings(text: str) -> int:
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines) if re.match(r"LD\d{3} (error|warning|note) ", line)), 0)


@pytest.mark.parametrize(
    "story", [story for story in STORIES if story != "cured"]
)  # its lines to paste hold a whole module
def test_findings_begin_on_the_first_screen(story: str) -> None:
    assert lines_before_the_findings(render(STORIES[story](), "text")) <= 24


def test_findings_of_nine_configurations_begin_on_the_first_screen() -> None:
    """The slowest rows make room for long notes and cells; the row to use and the default stay."""
    diagnosis = nine_configurations()
    text = render(diagnosis, "text")

    assert lines_before_the_findings(text) <= 24
    assert max(map(len, text.splitlines())) <= 100
    marked = [line for line in text.splitlines() if line[:2] == "> "]
    assert [line.split("  ")[0] for line in marked] == ["> compiled + channels_last + frozen"]
    assert "\n  compiled (the default) " in text
    assert "\n  5 more in report.html\n" in text
    assert "| **compiled + channels_last + frozen** |" in render(diagnosis, "markdown")
    assert render(diagnosis, "html").count('<tr class="recommended"><th scope="row">compiled') == 1


def nine_configurations() -> Diagnosis:
    """The usual set, with frozen weights as the recommendation, another program on the machine, and a finding."""
    names = [one.name for one in choose_configurations("default")]
    tensors = ["activation"] * 24 + ["weight"] * 11
    many = kernels(*(a_conversion(f"reorder {n}", tensor=tensor) for n, tensor in enumerate(tensors)))
    best, free = "inductor-channels-last-freezing", "inductor-channels-last"
    ratios = [a_ratio(name, 1.3 - 0.05 * n) for n, name in enumerate(sorted(names, key=len, reverse=True))]
    ratios = [one for one in ratios if one.name != "inductor"]
    return a_diagnosis(
        *(a_trial(name, kernels=many, configuration=BUILTIN[name]) for name in names),
        comparison=a_comparison(*ratios, fastest=(best,), other_cores=0.8),
        recommendation=a_recommendation(
            best,
            speedup=a_speedup(1.3, name=best),
            how="line\n" * 6 + "y = model(x)",
            without_freezing=WithoutFreezing(configuration=free, speedup=a_ratio(free, 1.2), how=None),
            verified=True,
        ),
        findings=(a_finding(configuration="inductor", severity="warning"),),
    )


@pytest.mark.parametrize("story", [story for story in STORIES if story != "hostile_names"])
def test_no_sentence_of_a_report_is_cut(story: str) -> None:
    text = render(STORIES[story](), "text")

    assert [line for line in text.splitlines() if re.search(r"\.\.\.(\W|$)", line)] == []
