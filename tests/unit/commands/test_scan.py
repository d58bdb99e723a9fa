"""The scan command: one screen, every output, exit statuses, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.fleet.scanning import scan

TRACES = Path(__file__).parents[2] / "traces"
ALEXNET = str(TRACES / "a100_alexnet.json.gz")
SMALL = [ALEXNET, *(str(TRACES / f"{name}.json.gz") for name in ("h100_vit_patch_embed", "a100_triton_example"))]


def test_one_screen_says_what_many_files_lost(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["scan", *SMALL, "-q"])

    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert out == str(scan(*SMALL))
    assert out.startswith("layoutdoctor scan · 3 files")
    assert "\nLayout conversions take 300 us of" in out
    assert len(out.splitlines()) < 60


def test_every_output_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    names = ("s.json", "s.md", "s.html", "s.txt", "s.jsonl", "s.parquet")

    status = main(["scan", *SMALL, *(word for name in names for word in ("--output", str(tmp_path / name)))])

    assert status == 0
    found = scan(*SMALL)
    assert (tmp_path / "s.json").read_bytes() == to_json(found)
    assert (tmp_path / "s.txt").read_text(encoding="utf-8") == str(found) == capsys.readouterr().out
    assert (tmp_path / "s.md").read_text(encoding="utf-8").startswith("## layoutdoctor scan · 3 files")
    assert len((tmp_path / "s.jsonl").read_bytes().splitlines()) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([ALEXNET], 0),
        ([ALEXNET, "--fail-on", "LD111"], 1),
        ([ALEXNET, "--fail-on", "error"], 0),
        ([ALEXNET, "/nowhere.json"], 3),
        ([ALEXNET, "/nowhere.json", "--fail-on", "ld111"], 1),
    ],
)
def test_a_scan_fails_on_what_was_asked_for_else_on_a_file_that_is_not_there(words: list[str], expected: int) -> None:
    assert main(["scan", "-q", *words]) == expected


def test_files_without_kernels_are_inconclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": []}', encoding="utf-8")

    assert main(["scan", "-q", str(tmp_path)]) == 4
    assert "No kernel was recorded in any of 1 file, so nothing can be said of layouts." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([ALEXNET, "--jobs", "0"], "cannot scan with 0 processes"),
        ([ALEXNET, "--output", "x.sarif"], "cannot write 'x.sarif': a scan has no report as sarif"),
        ([ALEXNET, "--output", ALEXNET], "cannot write"),
        ([ALEXNET, "--fail-on", "LD999"], "cannot fail on 'LD999'"),
        ([ALEXNET, "--rank-regex", "x"], "expected a group around the rank"),
        ([str(Path(__file__).parent)], "found no file that matches"),
        ([ALEXNET, "--redact", "--output", "x.jsonl"], "holds every name as it was recorded"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "-q", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_disk_that_fills_up_costs_that_output_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_up(found: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layoutdoctor.fleet.scanning.lines_file", lambda path: fill_up)
    lines, report = tmp_path / "s.jsonl", tmp_path / "s.json"

    status = main(["scan", *SMALL, "--output", str(lines), "--output", str(report)])

    out, err = capsys.readouterr()
    assert status != 0
    assert out == str(scan(*SMALL))
    assert json.loads(report.read_bytes())["schema_version"] == 1
    assert err.count("No space left on device; the scan goes on without it") == 1
    assert "error: cannot write" in err


def test_a_disk_that_fills_up_costs_what_is_kept_and_not_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_up(found: list[object]) -> None:
        if found:  # the file itself can still be made
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("layoutdoctor.fleet.scanning.lines_file", lambda path: fill_up)

    status = main(["scan", *SMALL, "-q", "--resume", str(tmp_path)])

    out, err = capsys.readouterr()
    assert status == 0
    assert out == str(scan(*SMALL))
    assert err == (
        f"layoutdoctor: warning: cannot keep results in {str(tmp_path)!r}: No space left on device; "
        "the scan goes on without keeping them\n"
    )
