"""The report on a terminal: the same words as the text report, within its width, and colours only where wanted."""

from __future__ import annotations

import io
import re
from collections import Counter

import msgspec
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.commands.streams import wants_colour
from layoutdoctor.commands.terminal import render_terminal
from layoutdoctor.reports.sections.view import build_view
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


def words(text: str) -> list[str]:
    return sorted(re.findall(r"[^\s─·]+", ESCAPE.sub("", text)))


@for_each("story", STORIES)
def test_a_terminal_gets_the_words_of_the_text_report_within_its_width(story: str) -> None:
    diagnosis = STORIES[story]()
    plain = Counter(words(render_text(diagnosis, 10_000)))
    to_paste = {f"  {line}" for line in build_view(diagnosis).answer.how}

    for width in (100, 140):
        shown = Counter(words(render_terminal(diagnosis, width, is_coloured=True)))
        # A word longer than a line is broken, and a table that stands row by row repeats its heads.
        missing = Counter("".join((plain - shown).elements())) - Counter("".join((shown - plain).elements()))
        assert not missing, width
    for width in (40, 60, 80, 100):
        report = render_terminal(diagnosis, width, is_coloured=False)
        lines = report.splitlines()
        assert [line for line in lines if len(line) > width and line not in to_paste] == [], width
        assert to_paste <= set(lines)
        assert "\x1b" not in report
        assert lines == [line.rstrip() for line in lines]


def test_colours_do_not_change_the_layout() -> None:
    diagnosis = STORIES["gain_with_findings"]()

    coloured = ESCAPE.sub("", render_terminal(diagnosis, 90, is_coloured=True))
    plain = render_terminal(diagnosis, 90, is_coloured=False)

    assert [line.rstrip() for line in coloured.splitlines()] == plain.splitlines()


def test_the_first_screen_says_who_is_fastest_by_how_much_what_is_wasted_and_what_to_paste() -> None:
    lines = render_terminal(STORIES["gain_with_findings"](), 80, is_coloured=False).splitlines()[:24]
    screen = " ".join(" ".join(lines).split())

    assert "Use inductor-channels-last: 1.28x faster than torch.compile's default" in screen
    assert "model = model.to(memory_format=torch.channels_last)" in screen
    assert "Conversions in torch.compile's default: 6 on every call, 1.50 ms of the 14.9 ms in its kernels" in screen


def test_a_table_too_wide_for_the_terminal_stands_row_by_row_with_whole_words() -> None:
    report = render_terminal(STORIES["gain_with_findings"](), 50, is_coloured=False)

    assert "inductor-channels-last\n  median 11.9 ms · vs default 1.28x  1.25..1.31 ·" in report
    assert "\n    optimization on, 4 of 4 convolutions\n" in report


def test_markup_and_escapes_in_names_are_text() -> None:
    diagnosis = STORIES["gain_with_findings"]()
    (first, *others) = diagnosis.findings
    hostile = msgspec.structs.replace(
        first, message="[red]x[/red] :boom: \x1b[2J\x1b]8;;http://x\x07 [link=http://x]y[/link]"
    )
    planted = msgspec.structs.replace(diagnosis, findings=(hostile, *others))

    report = render_terminal(planted, 120, is_coloured=True)

    assert "[red]x[/red] :boom:" in ESCAPE.sub("", report)
    assert "\x1b" not in ESCAPE.sub("", report)
    assert "[link=http://x]y[/link]" in ESCAPE.sub("", report)
