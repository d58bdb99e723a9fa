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
    MARKER,
    MOST_BYTES,
    MOST_CHARACTERS,
    markdown_parts,
    render_markdown,
)

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
    assert len(report) < MOST_CHARACTERS
    assert len(report.encode()) < MOST_BYTES
    assert report.count(f"\n{MARKER}\n") == 1
    assert report.count("<details>") == report.count("</details>")


@pytest.mark.thorough
def test_a_huge_record_fits_and_the_rest_is_whole_in_the_file_beside() -> None:
    report, details = markdown_parts(huge(), DETAILS)

    check_size(report)
    assert f"Lists are cut to fit into an issue: `{DETAILS}`, written beside this report, has all of them.\n" in report
    assert f"more left out here; `{DETAILS}` has them." in report
    assert details is not None
    assert [int(i) for i in re.findall(r"^\| reorder (\d+) +\|", details, re.MULTILINE)] == list(range(5_000))
    assert [int(i) for i in re.findall(r": finding (\d+): ", details)] == list(range(500))
    assert len(re.findall(r"^\| reorder \d+, reorder \d+ +\|", details, re.MULTILINE)) == 2_500
    assert "left out" not in details
    assert "\n- and " not in details


def test_what_the_report_leaves_out_it_counts() -> None:
    report = render_markdown(huge(3_000, 400, "n"))

    left_out = [int(count) for count in re.findall(r"(\d+) more left out here", report)]
    shown = len(re.findall(r"^\| reorder \d+ +\|", report, re.MULTILINE))
    assert shown >= 100
    assert shown + left_out[0] == 3_000
    (more,) = re.findall(r"^- and (\d+) more$", report, re.MULTILINE)
    assert len(re.findall(r": finding \d+: ", report)) + int(more) == 400


def test_without_a_file_the_report_says_how_to_have_one() -> None:
    report, details = markdown_parts(huge(2_000, 10, "n"))

    assert details is None
    assert (
        "Lists are cut to fit into an issue: the JSON report has all of them, and `--output report.md` writes them "
        "to a file beside it." in report
    )
    assert "more left out here; the JSON report has them." in report


def test_one_entry_more_than_fits_is_in_the_file() -> None:
    """The longest list that is not cut, and the next one: whatever is not shown is in the file, and it is said."""
    counts = range(200, 600, 100)
    parts = [markdown_parts(huge(count, 0, "n"), DETAILS) for count in counts]
    cut = [details is not None for _, details in parts]

    assert cut == sorted(cut)
    assert {True, False} == set(cut)
    for (report, details), count in zip(parts, counts, strict=True):
        check_size(report)
        assert ("Lists are cut" in report) is (details is not None)
        assert len(re.findall(r"^\| reorder \d+ +\|", details or report, re.MULTILINE)) == count


def test_bytes_count_as_well() -> None:
    """Signs of three bytes each: half the characters that are allowed are more bytes than are."""
    report, details = markdown_parts(huge(300, 30, "変" * 60), DETAILS)

    check_size(report)
    assert details is not None
    assert len(report) < 50_000


def test_so_many_configurations_that_no_table_fits_are_in_the_file() -> None:
    trials = tuple(a_trial(configuration=a_configuration(f"configuration {i} {'n' * 90}")) for i in range(600))
    diagnosis = a_diagnosis(*trials, findings=findings(3))
    report, details = markdown_parts(diagnosis, DETAILS)

    check_size(report)
    assert f"600 configurations and 3 findings; `{DETAILS}` has them." in report
    assert details is not None
    assert details.count("\n| configuration ") >= 600
    assert "`--output report.md` writes it to a file beside the report." in render_markdown(diagnosis)


@pytest.mark.parametrize("name", ["<" * 10_000, "`" * 10_000, "\x1b" * 10_000, "\ud800" * 50], ids=range(4))
def test_names_that_grow_when_they_are_escaped_fit(name: str) -> None:
    report, details = markdown_parts(huge(300, 40, name), DETAILS)

    check_size(report)
    assert details is not None
    html = cmarkgfm.github_flavored_markdown_to_html(details)
    assert html.count("<table>") == len(re.findall(r"^\|-[-|]+\|$", details, re.MULTILINE))


def test_the_name_of_the_file_is_data() -> None:
    report, _ = markdown_parts(huge(2_000, 1, "n"), "a`<b>|*.details.md")

    assert "<b>" not in report
    assert "a\\`&lt;b&gt;\\|\\*.details.md, written beside this report" in report
