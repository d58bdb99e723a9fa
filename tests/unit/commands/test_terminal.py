"""The report on a terminal: the same words as the text report, within its width, with colours on top."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from golden.stories import STORIES

from layoutdoctor.commands.output import render_terminal
from layoutdoctor.reports.text import render_text

if TYPE_CHECKING:
    import pytest

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_a_terminal_gets_the_text_report_and_nothing_but_colours_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for story in STORIES.values():
        for width in (60, 140):
            shown = render_terminal(story(), width)
            assert ESCAPE.sub("", shown) == render_text(story(), width)
            assert ESCAPE.search(shown)

    lines = render_terminal(STORIES["gain_with_findings"](), 100).splitlines()
    assert any(line.startswith("\x1b[1;32mcompiled + channels_last ") for line in lines)
    assert any(line.startswith("\x1b[33mLD205 warning ") for line in lines)

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in render_terminal(STORIES["gain_with_findings"](), 100)


def test_markup_and_escapes_in_names_are_text() -> None:
    diagnosis = STORIES["gain_with_findings"]()
    (first, *others) = diagnosis.findings
    hostile = msgspec.structs.replace(first, message="[red]x[/red] :boom: \x1b[2J\x1b]8;;http://x\x07")
    planted = msgspec.structs.replace(diagnosis, findings=(hostile, *others))

    report = ESCAPE.sub("", render_terminal(planted, 120))

    assert "[red]x[/red] :boom:" in report
    assert "\x1b" not in report
