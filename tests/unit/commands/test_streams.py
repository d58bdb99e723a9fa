"""The standard streams: colours, streams that cannot be written or know little, progress."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_workers import Clock
from loops import for_each

from layoutdoctor.__main__ import main
from layoutdoctor.commands.streams import (
    lossy_stderr,
    open_standard_streams,
    showing_progress,
    silence,
)
from layoutdoctor.workers.messages import Progress

COMMAND = [sys.executable, "-m", "layoutdoctor", "render", "missing.json"]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_standard_error_changes_no_exit_status() -> None:
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(COMMAND, stderr=full, check=False).returncode == 3


@pytest.mark.thorough
def test_a_reader_of_standard_error_that_went_away_changes_no_exit_status() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert subprocess.run(COMMAND, stderr=writing, check=False).returncode == 3
    finally:
        os.close(writing)


def test_what_cannot_be_written_is_lost_and_the_stream_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self) -> None:
            self.file = (tmp_path / "said").open("w")
            self.name = "full"

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return self.file.fileno()

    full = Full()
    monkeypatch.setattr(sys, "stderr", full)
    with lossy_stderr():
        print("lost", file=sys.stderr, flush=True)
        assert sys.stderr.name == "full"

    assert sys.stderr is full
    full.file.write("goes to nothing as well")
    full.file.close()
    assert (tmp_path / "said").read_text() == ""


def test_a_stream_without_a_descriptor_is_let_be(capsys: pytest.CaptureFixture[str]) -> None:
    silence(sys.stderr)

    with lossy_stderr():
        print("said", file=sys.stderr)
    assert capsys.readouterr().err == "said\n"


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """Standard output whose reader went away."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_that_went_away_is_no_error(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken())

    assert main(["render", str(saved)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_report_that_cannot_be_printed_is_an_error(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)

        assert main(["render", str(saved)]) == 3
    assert capsys.readouterr().err == (
        "layoutdoctor: error: cannot write the report to standard output: No space left on device; "
        "name a file with --output\n"
    )


def test_a_process_started_without_output_streams_writes_to_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    open_standard_streams()

    assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    assert (sys.stdout.encoding, sys.stderr.errors) == ("utf-8", "backslashreplace")


def test_an_output_that_knows_ascii_only_still_gets_the_report(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    assert main(["render", str(saved)]) == 0
    assert raw.getvalue().startswith(b"model.py ? inference ? CPU")


def test_progress_is_shown_as_standard_error_can_show_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet in (True, False):
        with showing_progress(quiet=quiet) as show:
            show(Progress("compiling", 7))
    assert capsys.readouterr().err == "layoutdoctor: [  7 %] compiling\n"

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    with showing_progress(quiet=False) as show:
        show(Progress("compiling [bold]a\x1b[31m", 50))
    shown = sys.stderr.getvalue()
    assert "compiling [bold]a\\x1b[31m" in shown
    assert "50%" in shown


def test_a_stage_that_only_counts_on_is_shown_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr("layoutdoctor.commands.streams.time", clock)
    with showing_progress(quiet=False) as show:
        for clock.now, stage in ((0.0, "round 0"), (7.0, "round 1"), (9.0, "round 2"), (9.5, "profiling")):
            show(Progress(stage, 70))

    assert capsys.readouterr().err.splitlines() == [
        f"layoutdoctor: [ 70 %] {stage}" for stage in ("round 0", "round 2", "profiling")
    ]


@for_each(
    ("left_seconds", "words"),
    [
        (None, ""),
        (0.5, ", about 5 s left"),
        (43.0, ", about 45 s left"),
        (89.0, ", about 90 s left"),
        (100.0, ", about 2 min left"),
    ],
)
def test_an_estimate_is_in_the_words_of_a_person(
    left_seconds: float | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with showing_progress(quiet=False) as show:
        show(Progress("compiling", 20, left_seconds=left_seconds))

    assert capsys.readouterr().err == f"layoutdoctor: [ 20 %] compiling{words}\n"
