"""
The short report as an HTML fragment, which notebooks show in place of a diagnosis.

No script, no style sheet, nothing from elsewhere: frontends that strip what they do not trust (GitHub, an untrusted
notebook) show the same text, and colours are those of the page around it, light or dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy import scrub
from layoutdoctor.reports.html.document import page_template
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import first_that_fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.sections.view import View

MOST_CHARACTERS = 20_000
# Tried from the longest: how many entries a list shows, and how many characters a text; the first that fits is taken.
LENGTHS = ((20, 1000), (12, 1000), (8, 600), (5, 300), (3, 150), (1, 80), (0, 40))
MOST_HOW_CHARACTERS = 2000

MORE = (
    "print(diagnosis) for the whole text, diagnosis.to_html() for the page, diagnosis.to_markdown() for an issue, "
    'diagnosis.to_pandas("conversions") for the numbers'
)


def render_fragment(diagnosis: Diagnosis) -> str:
    """
    The short report as an HTML fragment.

    Returns:
        One ``div`` without script, style sheet or anything from elsewhere, under 20,000 characters: long lists and
        texts are cut, and say so.
    """
    view = build_view(scrub(diagnosis))  # notebooks are passed on with their outputs
    fragments = (_fill(view, most, characters) for most, characters in LENGTHS)
    return first_that_fits(fragments, lambda fragment: len(fragment) < MOST_CHARACTERS)


def _fill(view: View, most: int, characters: int) -> str:
    """The fragment with so many entries of each list, and so many characters of each text."""

    def cut(text: str) -> str:
        return text if len(text) <= characters else f"{text[: characters - 3].rstrip()}..."

    def cut_list(parts: Sequence[str]) -> str:
        left_out = len(parts) - max(most, 1)
        return "; ".join([*map(cut, parts[: max(most, 1)]), *([f"and {left_out} more"] if left_out > 0 else [])])

    is_short = view.answer.is_short
    return page_template("fragment.html.j2").render(
        title=" · ".join(view.title),
        view=view,
        how=_lines_to_paste(view),
        tables=() if is_short else [table.narrow for table in view.tables if table.rows],
        remarks=() if is_short else view.remarks,
        findings=view.findings if is_short else view.main_findings,
        in_full=not is_short,
        most=most,
        cut=cut,
        not_understood=cut_list(view.not_understood),
        hint=MORE,
    )


def _lines_to_paste(view: View) -> str:
    """Whole or not at all: half of them would be wrong code."""
    how = "\n".join(view.answer.how)
    if len(how) <= MOST_HOW_CHARACTERS:
        return how
    return f"# {len(view.answer.how)} lines, too many to show here: print(diagnosis.recommendation.how)"
