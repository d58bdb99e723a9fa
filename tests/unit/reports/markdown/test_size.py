"""The Markdown report of records of any size: what fits into an issue, and where the rest is."""

from __future__ import annotations

import re

import cmarkgfm
import pytest
from builders import (
    a_configuration,
    a_conversion,
    a_diagnosis,
    a_pair,
    a_trial,
    kernels,
)

from layoutdoctor.diagnosis.records import Diagnosis, Finding
from layoutdoctor.reports.markdown import (
    USUAL_CHARACTERS,
    markdown_parts,
    render_markdown,
)
from layoutdoctor.reports.reproducer.report import Reproducer

DETAILS = "report.details.md"


def findings(count: int, message: str = "a message") -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code="LD101",
            rule="round-trip-conversion",
            severity="warning",
            configuration="inductor",
            message=f"finding {i}: {message}",
            suggestion="use channels_last",
        )
        for i in range(count)
    )


def huge(conversion_count: int = 5_000, finding_count: int = 500, name: str = "n" * 10_000) -> Diagnosis:
    conversions = tuple(
        a_conversion(f"reorder {i}", kernel=name, op=name, module=name, cause=name) for i in range(conversion_count)
    )
    pairs = tuple(a_pair(f"reorder {i}", f"reorder {i + 1}", proof=name) for i in range(0, conversion_count, 2))
    trial = a_trial(kernels=kernels(*conversions, seconds=10.0), redundant_pairs=pairs, notes=(name,))
    return a_diagnosis(trial, findings=findings(finding_count, name))


def check_size(report: str) -> None:
    assert len(report.encode()) < USUAL_CHARACTERS
    assert report.count("<details>") == report.count("</details>")


def test_a_huge_record_fits_and_the_rest_is_whole_in_the_file_beside() -> None:
    report, details = markdown_parts(huge(1_000, 400), DETAILS)

    check_size(report)
    assert f"`{DETAILS}` has every conversion, decision and difference\n" in report
    assert details is not None
    assert [int(i) for i in re.findall(r"^\| reorder (\d+) +\|", details, re.MULTILINE)] == list(range(1_000))
    assert [int(i) for i in re.findall(r": finding (\d+): ", details)] == list(range(400))
    assert len(re.findall(r"^\| reorder \d+, reorder \d+ +\|", details, re.MULTILINE)) == 500
    assert "left out" not in details


def test_without_a_file_the_report_says_how_to_have_one() -> None:
    report, details = markdown_parts(huge(20, 10, "n"))

    assert details is None
    assert "`--output report.md` writes every conversion, decision and difference to a file beside the report" in report


def test_parts_are_left_out_whole() -> None:
    short, cut = render_markdown(huge(20, 5, "n")), render_markdown(huge(20, 20, "n" * 900))

    assert short.count(": finding ") == 5
    assert len(cut) < USUAL_CHARACTERS
    assert cut.count(": finding ") in (0, 5)


def test_a_long_script_stands_in_the_file_beside_and_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import torch\n" * 1_000
    monkeypatch.setattr(
        "layoutdoctor.reports.reproducer.report.build_reproducer",
        lambda _: Reproducer(script, is_runnable=True, title="a title"),
    )
    report, details = markdown_parts(huge(20, 5, "n"), DETAILS)

    assert f"a title (1000 lines, also in `{DETAILS}`)." in report
    assert script not in report
    assert script.rstrip() in (details or "")


def test_so_many_configurations_that_no_table_fits_are_in_the_file() -> None:
    trials = tuple(a_trial(configuration=a_configuration(f"configuration {i} {'n' * 90}")) for i in range(600))
    diagnosis = a_diagnosis(*trials, findings=findings(3))
    report, details = markdown_parts(diagnosis, DETAILS)

    check_size(report)
    assert f"`{DETAILS}` has every conversion" in report
    assert details is not None
    assert details.count("\n| configuration ") >= 600


@pytest.mark.parametrize("name", ["<" * 10_000, "`" * 10_000, "\x1b" * 10_000, "\ud800" * 50], ids=range(4))
def test_names_that_grow_when_they_are_escaped_fit(name: str) -> None:
    report, details = markdown_parts(huge(300, 40, name), DETAILS)

    check_size(report)
    assert details is not None
    html = cmarkgfm.github_flavored_markdown_to_html(details)
    assert html.count("<table>") == len(re.findall(r"^\|-[-|]+\|$", details, re.MULTILINE))


def test_the_name_of_the_file_is_data() -> None:
    report, _ = markdown_parts(huge(20, 1, "n"), "a`<b>|*.details.md")

    assert "<b>" not in report
    assert "a\\`&lt;b&gt;\\|\\*.details.md has every conversion" in report
