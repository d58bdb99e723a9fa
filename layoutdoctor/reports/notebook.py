"""
The short report as an HTML fragment, which notebooks show in place of a diagnosis.

No script, no style sheet, nothing from elsewhere: frontends that strip untrusted elements (GitHub, an untrusted
notebook) show the same text, and colours are those of the page around it, light or dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.privacy import scrub
from layoutdoctor.reports.html.document import page_template
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

MOST_ENTRIES = 8
MOST_CHARACTERS = 600
MOST_HOW_CHARACTERS = 2000

MORE = (
    "print(diagnosis) for the whole text, diagnosis.to_html() for the page, diagnosis.to_markdown() for an issue, "
    'diagnosis.to_pandas("conversions") for the numbers'
)


def render_fragment(diagnosis: Diagnosis) -> str:
    """The short report as one ``div``; long lists and texts are cut, and say so."""
    view = build_view(scrub(diagnosis))  # notebooks are passed on with their outputs
    is_short = view.answer.is_short
    how = "\n".join(view.answer.how)
    if len(how) > MOST_HOW_CHARACTERS:  # half of them would be wrong code
        how = f"# {len(view.answer.how)} lines, too many to show here: print(diagnosis.recommendation.how)"
    return page_template("fragment.html.j2").render(
        title=" · ".join(view.title),
        view=view,
        how=how,
        tables=() if is_short else [table.narrow for table in view.tables if table.rows],
        remarks=() if is_short else view.remarks,
        findings=view.findings if is_short else view.main_findings,
        in_full=not is_short,
        most=MOST_ENTRIES,
        cut=_cut,
        not_understood="; ".join(map(_cut, view.not_understood[:MOST_ENTRIES])),
        hint=MORE,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3].rstrip()}..."
