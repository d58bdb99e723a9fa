"""
Makes the HTML report, a page that needs no network, and the short report for notebooks, from templates in ``page``.

Every string of a record goes into the page through jinja2's escaping, or as JSON in a script element that no browser
runs. The page's Content-Security-Policy allows only the scripts and the style sheet of this module, by their
hashes. The same diagnosis gives the same page, because the page has no clock time and no random names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.charts import build_bars, build_flows, build_timelines
from layoutdoctor.reports.reproducer import build_reproducer
from layoutdoctor.reports.rules_page import passages_of
from layoutdoctor.reports.sections.account import account_table, row_name
from layoutdoctor.reports.sections.details import Detail, build_details, build_environment
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import clean, clean_log, clean_name
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import jinja2

    from layoutdoctor.reports.sections.rows import Overview
    from layoutdoctor.reports.sections.view import View
    from layoutdoctor.rules import Rule

MOST_LISTED = 200
"""Most rows of a long list, the costliest first; the JSON report has all rows."""
MOST_NAMED = 50

_CODE = re.compile(r"`(.+?)`", re.DOTALL)


def _lists(diagnosis: Diagnosis) -> tuple[Detail, ...]:
    rows = [row for account in diagnosis.accounts for row in account.rows]
    sources = {row.source: f"Generated kernel for {row_name(row)}" for row in rows if row.source is not None}
    return (*build_details(diagnosis, MOST_LISTED), *(Detail(title, log=source) for source, title in sources.items()))


def _cards(view: View) -> Iterator[dict[str, object]]:
    """Yields the findings, each with its line of code and the ids of its evidence."""
    for number, entry in enumerate(view.findings, 1):
        place = entry.findings[0].location
        code = place.code if place is not None and len(entry.findings) == 1 else ""
        evidence = dict.fromkeys(name for finding in entry.findings for name in finding.evidence)
        yield {
            "number": number,
            "entry": entry,
            "code": clean(code or "", 300),
            "named": list(map(clean_name, evidence))[:MOST_NAMED],
        }


def _passages(rule: Rule) -> list[tuple[str | None, list[list[str]]]]:
    """Returns the parts of a rule's page; each paragraph is a list in which text and code alternate."""
    return [(heading, [_CODE.split(text) for text in paragraphs]) for heading, paragraphs in passages_of(rule)]


STYLE_FILE = "style.css"
SCRIPT_FILE = "report.js"
CHART_FILES = ("echarts/echarts.min.js", "charts.js")
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def render_html(diagnosis: Diagnosis) -> str:
    """Returns the report as one HTML page."""
    view = build_view(diagnosis)
    data = {
        "bars": build_bars(diagnosis),
        "timelines": build_timelines(diagnosis),
        "flows": build_flows(diagnosis),
    }
    has_charts = any(data.values())
    codes = {entry.code for entry in view.findings}
    rules = [rule for rule in ALL_RULES if rule.code in codes]
    return _page(
        "report.html.j2",
        (SCRIPT_FILE, *(CHART_FILES if has_charts else ())),
        name=view.title[:2],
        facts=(*view.title[1:], view.made_by),
        view=view,
        data=data,
        has_charts=has_charts,
        accounts=list(map(account_table, diagnosis.accounts)),
        json=json_for_script(data),
        tables=[table for table in view.tables if table.rows],
        lists=_lists(diagnosis),
        environment=build_environment(diagnosis, MOST_LISTED),
        cards=list(_cards(view)),
        rules=rules,
        documented={rule.code for rule in rules},
        passages_of=_passages,
        clean_log=clean_log,
        reproducer=build_reproducer(diagnosis),
    )


def overview_html(view: Overview) -> str:
    """Returns a report of tables as one HTML page."""
    program, *name = view.title
    tables = [table for table in view.tables if table.rows]
    facts = (*name[1:], program)
    return _page("overview.html.j2", (SCRIPT_FILE,), name=name[:2], facts=facts, view=view, tables=tables, json="{}")


def _page(template: str, script_files: Sequence[str], **values: object) -> str:
    """Returns a page whose policy allows only its own scripts and style sheet, and forbids loading anything else."""
    style, scripts = read_page_file(STYLE_FILE), [read_page_file(name) for name in script_files]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(hash_source, scripts))}; style-src {hash_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return page_template(template).render(style=style, scripts=scripts, policy=policy, **values)


def json_for_script(data: object) -> str:
    """Returns JSON for use inside a script element: a name that contains ``</script>`` cannot end the element."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", msgspec.json.encode(data).decode())


@cache
def read_page_file(name: str) -> str:
    """Returns the text of a file in the folder ``page``."""
    return resources.files("layoutdoctor.reports").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


@cache
def hash_source(text: str) -> str:
    """Returns the hash by which the page's policy allows a script or a style sheet."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def page_template(name: str) -> jinja2.Template:
    """Returns a template of the folder ``page``; the template escapes every string."""
    import jinja2  # late: most commands write no page

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read_page_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template(name)


# ---------------------------------------------------------------------------------------------- notebooks
MOST_ENTRIES = 8
MOST_CHARACTERS = 600
MOST_HOW_CHARACTERS = 2000
MORE = (
    "print(diagnosis) for the whole text, diagnosis.to_html() for the page, diagnosis.to_markdown() for an issue, "
    'diagnosis.to_pandas("conversions") for the numbers'
)


def render_fragment(diagnosis: Diagnosis) -> str:
    """
    Returns the short report as one ``div``, which notebooks show for a diagnosis; long lists and texts are cut.

    The ``div`` has no script and no style sheet. So frontends that strip untrusted elements (GitHub, an untrusted
    notebook) show the same text. The surrounding page chooses the colours, light or dark.
    """
    view = build_view(scrub(diagnosis))  # notebooks are passed on with their outputs
    is_short = view.answer.is_short
    how = "\n".join(view.answer.how)
    if len(how) > MOST_HOW_CHARACTERS:  # only some of the lines would be wrong code
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
        cut=lambda text: clean(text, MOST_CHARACTERS),
        not_understood="; ".join(clean(text, MOST_CHARACTERS) for text in view.not_understood[:MOST_ENTRIES]),
        hint=MORE,
    )
