"""The report as a terminal shows it: the lines of the text report, set off by weight and colour."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.text import LABEL_WIDTH, text_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.reports.text import Role

_STYLES: Mapping[Role, str] = {
    "title": "dim",
    "claim": "bold",
    "code": "cyan",
    "head": "dim",
    "recommended": "bold green",
    "failed": "red",
    "to do": "green",
    "more": "dim",
}
_SEVERITIES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_FINDING = re.compile(r"LD\d+ (error|warning|note) ")
_FASTER = re.compile(r"[\d.]+x faster ")


def render_terminal(diagnosis: Diagnosis, width: int | None) -> str:
    """
    The report for standard output, with colours if rich finds that it takes them (``NO_COLOR``, ``FORCE_COLOR``).

    Args:
        width: Characters per line, None for 100; lines to paste are never broken.
    """
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for role, line in text_lines(build_view(diagnosis), width):
            console.print(_coloured(role, line), soft_wrap=True)
    return captured.get()


def _coloured(role: Role, line: str) -> Text:
    text = Text(line, _STYLES.get(role, ""))
    finding = _FINDING.match(line)
    if role == "note":
        text.stylize("bold", 0, LABEL_WIDTH)
    elif role == "claim" and _FASTER.match(line):
        text.stylize("green")
    elif role == "finding" and finding is not None:
        text.stylize(_SEVERITIES[finding[1]], 0, finding.end())
    return text
