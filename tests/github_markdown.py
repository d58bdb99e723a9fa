"""
A Markdown report as GitHub draws it: its own parser of CommonMark and tables, then a strict parser of HTML.

Shared by the tests of hand-made records and of real diagnoses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import cmarkgfm
import html5lib
from cmarkgfm.cmark import Options

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# Whatever a report may hold; a link is one of GitHub's own making.
ELEMENTS = {
    *("html", "head", "body", "h2", "h3", "h4", "p", "ul", "li", "strong", "a", "pre", "code"),
    *("details", "summary", "table", "thead", "tbody", "tr", "th", "td"),
}


def parse(report: str) -> Element:
    """The report as GitHub sees it; html5lib raises on any HTML that is not well-formed."""
    html = cmarkgfm.github_flavored_markdown_to_html(report, options=Options.CMARK_OPT_UNSAFE)
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    return parser.parse(f"<!DOCTYPE html><html><head></head><body>{html}</body></html>")


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def code_blocks(document: Element) -> list[tuple[str, str]]:
    """Language and text of each."""
    return [(str(pre.get("lang", "")), text_of(pre)) for pre in document.iter("pre")]


def check_form(report: str) -> Element:
    """What holds for every report, whatever the record."""
    document = parse(report)
    assert {str(element.tag) for element in document.iter() if isinstance(element.tag, str)} <= ELEMENTS
    tables = list(document.iter("table"))
    rows = re.findall(r"^\|", without_code(report), re.MULTILINE)
    assert len(rows) == sum(len(list(table.iter("tr"))) + 1 for table in tables)
    for table in tables:
        (head,) = table.iter("thead")
        width = len(list(head.iter("th")))
        assert width > 1 or "reason" in text_of(head)
        assert {len(list(row.iter("td"))) for row in table.iter("tr") if row not in list(head)} == {width}
    for details in document.iter("details"):
        tags = [child.tag for child in details]
        assert tags[0] == "summary"
        assert tags.count("summary") == 1
        assert len(list(details)) > 1
    for language, _ in code_blocks(document):
        assert language in ("python", "text")
    return document


def without_code(report: str) -> str:
    return re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", report)
