"""The file beside a Markdown report: written where the report does not hold everything, and never over another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from builders import a_conversion, a_diagnosis, a_trial, kernels

from layoutdoctor.__main__ import main
from layoutdoctor.commands.output import prepare_outputs, save_reports

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Diagnosis


def diagnosis_of(count: int) -> Diagnosis:
    return a_diagnosis(a_trial(kernels=kernels(*(a_conversion(f"reorder {i}") for i in range(count)), seconds=9.0)))


@pytest.fixture
def huge(tmp_path: Path) -> str:
    """A saved diagnosis whose report does not fit into an issue."""
    path = tmp_path / "d.json"
    diagnosis_of(2_000).save(path)
    return str(path)


def named_in(report: Path) -> str:
    (name,) = re.findall(r"`([^`]+)`, written beside this report", report.read_text(encoding="utf-8"))
    return str(name)


def test_what_does_not_fit_stands_beside_the_report(tmp_path: Path, huge: str) -> None:
    assert main(["render", huge, "--output", str(tmp_path / "report.md")]) == 0

    assert named_in(tmp_path / "report.md") == "report.details.md"
    details = (tmp_path / "report.details.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| reorder \d+ +\|", details, re.MULTILINE)) == 2_000


def test_where_all_fits_there_is_one_file(tmp_path: Path) -> None:
    outputs = prepare_outputs([str(tmp_path / "report.md")], force=False)
    save_reports(diagnosis_of(3), outputs)

    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_a_file_in_the_way_is_kept_and_the_report_names_another_one(tmp_path: Path, huge: str) -> None:
    (tmp_path / "report.details.md").write_text("mine", encoding="utf-8")
    (tmp_path / "report.details-2.md").symlink_to("nowhere")

    assert main(["render", huge, "--output", str(tmp_path / "report.md")]) == 0
    assert (tmp_path / "report.details.md").read_text(encoding="utf-8") == "mine"
    assert named_in(tmp_path / "report.md") == "report.details-3.md"
    assert (tmp_path / "report.details-3.md").is_file()
    assert not (tmp_path / "nowhere").exists()


def test_with_force_it_is_replaced_but_no_directory_is(tmp_path: Path, huge: str) -> None:
    (tmp_path / "a.details.md").write_text("old", encoding="utf-8")
    (tmp_path / "b.details.md").mkdir()
    outputs = [argument for name in ("a", "b") for argument in ("--output", str(tmp_path / f"{name}.md"))]

    assert main(["render", huge, *outputs, "--force"]) == 0
    assert (tmp_path / "a.details.md").read_text(encoding="utf-8").startswith("## layoutdoctor ")
    assert named_in(tmp_path / "b.md") == "b.details-2.md"


def test_it_is_no_other_output(tmp_path: Path, huge: str) -> None:
    names = ("report.md", "report.markdown", "report.details.md")
    outputs = prepare_outputs([str(tmp_path / name) for name in names], force=True)

    assert [output.details.name for output in outputs if output.details is not None] == [
        "report.details-2.md",
        "report.details-3.md",
        "report.details.details.md",
    ]


def test_all_saves_of_one_run_write_the_same_files(tmp_path: Path) -> None:
    outputs = prepare_outputs([str(tmp_path / "report.md")], force=False)
    save_reports(diagnosis_of(2_000), outputs)
    save_reports(diagnosis_of(2_001), outputs)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.details.md", "report.md"]


def test_only_markdown_has_one(tmp_path: Path) -> None:
    outputs = prepare_outputs([str(tmp_path / name) for name in ("d.json", "d.txt", "d.sarif")], force=False)

    assert [output.details for output in outputs] == [None, None, None]


def test_redacted_details_name_nothing_either(tmp_path: Path) -> None:
    conversions = tuple(a_conversion(f"reorder {i}", module=f"secret_{i}.block") for i in range(2_000))
    outputs = prepare_outputs([str(tmp_path / "report.md")], force=False, redact=True)
    save_reports(a_diagnosis(a_trial(kernels=kernels(*conversions, seconds=9.0))), outputs)

    assert "secret" not in (tmp_path / "report.details.md").read_text(encoding="utf-8")


def test_on_standard_output_the_report_says_how_to_have_the_rest(huge: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", huge, "--format", "markdown"]) == 0

    assert "`--output report.md` writes them to a file beside it." in capsys.readouterr().out
