"""The report on a terminal: the same words as the text report, within its width, and colours only where wanted."""

from __future__ import annotations

import io
import re

import msgspec
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.commands.streams import wants_colour
from layoutdoctor.commands.terminal import render_terminal
from layoutdoctor.reports.text import render_text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Stream(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_who_gets_colours() -> None:
    for is_terminal, variables, expected in (
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": ""}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ):
        assert wants_colour(Stream(is_terminal=is_terminal), variables) is expected, (is_terminal, variables)


@for_each("story", STORIES)
def test_a_terminal_gets_the_text_report_and_nothing_but_colours_on_top(story: str) -> None:
    diagnosis = STORIES[story]()

    for width in (60, 100, 140):
        text = render_text(diagnosis, width)
        shown = render_terminal(diagnosis, width, is_coloured=True)
        assert ESCAPE.sub("", shown) == text
        assert render_terminal(diagnosis, width, is_coloured=False) == text
        assert ESCAPE.search(shown)


def test_the_recommended_row_and_the_severity_have_colours() -> None:
    shown = render_terminal(STORIES["gain_with_findings"](), 100, is_coloured=True).splitlines()

    assert any(line.startswith("\x1b[1;32mcompiled + channels_last ") for line in shown)
    assert any(line.startswith("\x1b[33mLD205 warning ") for line in shown)


def test_markup_and_escapes_in_names_are_text() -> None:
    diagnosis = STORIES["gain_with_findings"]()
    (first, *others) = diagnosis.findings
    hostile = msgspec.structs.replace(first, message="[red]x[/red] :boom: \x1b[2J\x1b]8;;http://x\x07")
    planted = msgspec.structs.replace(diagnosis, findings=(hostile, *others))

    report = ESCAPE.sub("", render_terminal(planted, 120, is_coloured=True))

    assert "[red]x[/red] :boom:" in report
    assert "\x1b" not in report
