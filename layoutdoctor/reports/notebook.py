"""
The short report as an HTML fragment, which notebooks show in place of a diagnosis.

No script, no style sheet, nothing from elsewhere: frontends that strip what they do not trust (GitHub, an untrusted
notebook) show the same text, and colours are those of the page around it, light or dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2

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

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
_TEMPLATE = """
<div class="layoutdoctor" style="max-width:62em;line-height:1.45;overflow-wrap:anywhere">
<p style="margin:0 0 6px;opacity:.75">{{ cut(title) }}</p>
{% if view.interrupted %}
<p style="margin:0 0 6px"><strong>{{ cut(view.interrupted) }}.</strong></p>
{% endif %}
<p style="margin:0 0 6px;font-size:1.1em"><strong>{{ cut(view.answer.headline) }}</strong></p>
{% if how %}
<pre style="margin:0 0 6px;padding:6px 10px;border-left:3px solid;overflow-x:auto"><code>{{ how }}</code></pre>
{% endif %}
{{ listed(view.answer.lines) }}
{% for table in tables %}
<table style="margin:8px 0;border-collapse:collapse">
<thead><tr>
{% for head in table.head %}<th scope="col" style="{{ cell }}">{{ cut(head) }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows[:most] %}
<tr><th scope="row" style="{{ cell }}">{{ cut(row.cells[0]) }}</th>
{% if row.clause is not none %}
<td colspan="{{ table.head | length - 1 }}" style="{{ cell }}">{{ cut(row.clause) }}</td></tr>
{% else %}
{% for text in row.cells[1:] %}<td style="{{ cell }}">{{ cut(text) }}</td>{% endfor %}</tr>
{% endif %}
{% endfor %}
</tbody></table>
{% if table.rows | length > most %}
<p style="margin:0 0 6px">and {{ table.rows | length - most }} more</p>
{% endif %}
{% endfor %}
{{ listed(remarks) }}
<p style="margin:8px 0 2px"><strong>Findings</strong>{% if not view.findings %}: none{% endif %}</p>
{% if view.findings %}
<ul style="margin:0 0 6px">
{% for finding in view.findings[:most] %}
<li><strong>{{ cut(finding.code) }} {{ finding.severity }}</strong> {{ cut(finding.rule) }}
{% if finding.configuration %}
[{{ cut(finding.configuration) }}]
{% endif %}
{% if in_full %}
<br>{{ cut(finding.message) }}
{% if finding.place %}
<br>at <code>{{ cut(finding.place) }}</code>
{% endif %}
{% if finding.suggestion %}
<br>→ {{ cut(finding.suggestion) }}
{% endif %}
{% endif %}
</li>
{% endfor %}
{% if view.findings | length > most %}
<li>and {{ view.findings | length - most }} more</li>
{% endif %}
</ul>
{% endif %}
<p style="margin:0 0 6px">Not understood: {{ not_understood }}.<br>
Measurement: {{ measurement }}.</p>
<p style="margin:0;opacity:.75">More: {{ hint }}</p>
</div>
"""
_LISTED = """
{% macro listed(lines) %}
{% if lines %}
<ul style="margin:0 0 6px">
{% for line in lines[:most] %}
<li>{{ cut(line) }}</li>
{% endfor %}
{% if lines | length > most %}
<li>and {{ lines | length - most }} more</li>
{% endif %}
</ul>
{% endif %}
{% endmacro %}
"""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How much of each list and text is shown."""

    most: int
    characters: int

    def text(self, text: str) -> str:
        return text if len(text) <= self.characters else f"{text[: self.characters - 3].rstrip()}..."

    def joined(self, parts: Sequence[str]) -> str:
        shown = [self.text(part) for part in parts[: max(self.most, 1)]]
        left_out = len(parts) - len(shown)
        return "; ".join([*shown, f"and {left_out} more"] if left_out else shown)


def render_fragment(diagnosis: Diagnosis) -> str:
    """
    The short report as an HTML fragment.

    Returns:
        One ``div`` without script, style sheet or anything from elsewhere, under 20,000 characters: long lists and
        texts are cut, and say so.
    """
    view = build_view(scrub(diagnosis))  # notebooks are passed on with their outputs
    fragment = ""
    for most, characters in LENGTHS:
        fragment = _fill(view, _Cut(most, characters))
        if len(fragment) < MOST_CHARACTERS:
            break
    return fragment


def _fill(view: View, cut: _Cut) -> str:
    is_short = view.answer.is_short
    return _template().render(
        title=" · ".join(view.title),
        view=view,
        how=_lines_to_paste(view),
        tables=() if is_short else [table for table in view.tables if table.rows],
        remarks=() if is_short else view.remarks,
        in_full=not is_short,
        most=cut.most,
        cut=cut.text,
        cell=_CELL,
        not_understood=cut.joined(view.not_understood),
        measurement=cut.joined(view.measurement[:1] if is_short else view.measurement),
        hint=MORE,
    )


def _lines_to_paste(view: View) -> str:
    """Whole or not at all: half of them would be wrong code."""
    how = "\n".join(view.answer.how)
    if len(how) <= MOST_HOW_CHARACTERS:
        return how
    return f"# {len(view.answer.how)} lines, too many to show here: print(diagnosis.recommendation.how)"


@cache
def _template() -> jinja2.Template:
    import jinja2  # late: only notebooks need it

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_LISTED.lstrip() + _TEMPLATE.lstrip())
