"""
The HTML report: one page that needs no network, of the templates in ``page``, the shared view, tables and charts.

Every string of a record goes into the page through jinja2's escaping, or as JSON in a script element that no browser
runs. The page's own policy (Content-Security-Policy) lets no other script or style sheet act than those written here,
known by their hashes. Same diagnosis, same page: no clock, no random names.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.reports.html.cards import (
    MOST_FINDINGS,
    build_cards,
    build_folds,
    build_round_table,
    build_rule_texts,
    build_view_tables,
)
from layoutdoctor.reports.html.charts import (
    COVERAGE_SHARE,
    build_bars,
    build_placed_flows,
    build_rounds,
    build_timelines,
)
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    import jinja2

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.html.charts import PlacedFlow, Rounds, TimeBar, Timeline

LIBRARY_FILE = "echarts/echarts.min.js"
STYLE_FILE = "style.css"
SCRIPT_FILE = "report.js"
CHARTS_FILE = "charts.js"
CHART_FILES = (LIBRARY_FILE, CHARTS_FILE)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class ChartData:
    """What all charts of a page draw; it stands in the page as JSON, named as here."""

    coverage: float
    bars: tuple[TimeBar, ...]
    rounds: tuple[Rounds, ...]
    timelines: tuple[Timeline, ...]
    flows: tuple[PlacedFlow, ...]

    @property
    def has_charts(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.bars or self.timelines or self.flows)


def render_html(diagnosis: Diagnosis) -> str:
    """The report as one HTML page."""
    view = build_view(diagnosis)
    rounds = build_rounds(diagnosis)
    data = ChartData(
        COVERAGE_SHARE, build_bars(diagnosis), rounds, build_timelines(diagnosis), build_placed_flows(diagnosis)
    )
    *folds, environment = build_folds(diagnosis)
    cards = build_cards(diagnosis, view)
    style = read_page_file(STYLE_FILE)
    scripts = [read_page_file(name) for name in (SCRIPT_FILE, *(CHART_FILES if data.has_charts else ()))]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            data=data,
            json=json_for_script(data),
            tables=build_view_tables(view),
            round_table=build_round_table(rounds),
            folds=folds,
            environment=environment,
            cards=cards,
            cards_left_out=max(0, len(view.findings) - MOST_FINDINGS),
            rule_texts=build_rule_texts(cards),
            reproducer=build_reproducer(diagnosis),
            style=style,
            scripts=scripts,
            policy=_policy(style, scripts),
        )
    )


def without_library(html: str) -> str:
    """A page without what all pages have alike (library, style sheet, script, hashes), for tests that keep pages."""
    for name in (STYLE_FILE, SCRIPT_FILE, *CHART_FILES):
        text = read_page_file(name)
        html = html.replace(text, f"/* {name} */").replace(hash_source(text), f"'hash of {name}'")
    return html


def json_for_script(data: object) -> str:
    """JSON that can stand inside a script element: a name that holds ``</script>`` cannot end it."""
    text = msgspec.json.encode(data).decode()
    for character, escape in _UNSAFE.items():
        text = text.replace(character, escape)
    return text


@cache
def read_page_file(name: str) -> str:
    """A file that goes into the page."""
    return resources.files("layoutdoctor.reports.html").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def _policy(style: str, scripts: list[str]) -> str:
    """Nothing may be loaded, run or styled but what stands in the page and was written here."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(hash_source, scripts))}",
            f"style-src {hash_source(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


@cache
def hash_source(text: str) -> str:
    """How the page's policy names a script or a style sheet that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # late: most commands write no page

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read_page_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
