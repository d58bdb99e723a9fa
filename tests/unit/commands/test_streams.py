"""The standard streams: streams that cannot be written or know little, what acts on a terminal, progress."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from fake_workers import Clock

from layoutdoctor.__main__ import main
from layoutdoctor.commands.streams import print_text, say, showing_progress
from layoutdoctor.workers.messages import Progress

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


class Broken(io.StringIO):
    """A stream whose reader went away."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_reader_that_went_away_is_no_error(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken())
        assert main(["render", str(saved)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", Broken())
    say("lost")


@needs_full
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


def test_an_output_that_knows_ascii_only_still_gets_the_report(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    assert main(["render", str(saved)]) == 0
    assert raw.getvalue().startswith(b"model.py ? inference ? CPU")


def test_nothing_but_colours_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("\x1b[1;32mgreen\x1b[0m\t\x1b]0;title\x07 \x9b1m\n")
    say("a\x1b[31m\nb", "  c\x07")

    assert capsys.readouterr() == (
        "\x1b[1;32mgreen\x1b[0m\t\\x1b]0;title\\x07 \\x9b1m\n",
        "layoutdoctor: a\\x1b[31m\\nb\n  c\\x07\n",
    )


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    with showing_progress(quiet=False) as show:
        show(Progress("compiling [bold]a\x1b[31m", 50))
    shown = sys.stderr.getvalue()
    assert "compiling [bold]a\\x1b[31m" in shown
    assert "50%" in shown


def test_progress_is_lines_elsewhere_and_a_stage_that_only_counts_on_is_shown_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr("layoutdoctor.commands.streams.time", clock)
    for quiet in (True, False):
        with showing_progress(quiet=quiet) as show:
            for clock.now, stage in ((0.0, "round 0"), (7.0, "round 1"), (9.0, "round 2"), (9.5, "profiling")):
                show(Progress(stage, 70))

    assert capsys.readouterr().err.splitlines() == [
        f"layoutdoctor: [ 70 %] {stage}" for stage in ("round 0", "round 2", "profiling")
    ]


@pytest.mark.parametrize(
    ("left_seconds", "words"),
    [(None, ""), (0.0, ""), (0.5, ", about 5 s left"), (43.0, ", about 45 s left"), (100.0, ", about 2 min left")],
)
def test_an_estimate_is_in_the_words_of_a_person(
    left_seconds: float | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with showing_progress(quiet=False) as show:
        show(Progress("compiling", 20, left_seconds=left_seconds))

    assert capsys.readouterr().err == f"layoutdoctor: [ 20 %] compiling{words}\n"
