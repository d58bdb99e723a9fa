"""
The HTML report: one file that needs no network, with the sections of the shared view, charts and sortable tables.

Faces the formats' table. What makes the page is imported when a page is made, as most commands make none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis


def render_html(diagnosis: Diagnosis) -> str:
    """
    The report as one HTML page.

    Args:
        diagnosis: Any diagnosis.
    """
    from layoutdoctor.reports.html.document import write_page

    return write_page(diagnosis)


def without_library(html: str) -> str:
    """
    A page without what all pages have alike: the chart library, the style sheet and the script, and their hashes.

    Args:
        html: What ``render_html`` returned.

    Returns:
        The page's own content, small enough for tests that keep whole pages.
    """
    from layoutdoctor.reports.html.document import CHART_FILES, SCRIPT_FILE, STYLE_FILE, hash_source, read_page_file

    for name in (STYLE_FILE, SCRIPT_FILE, *CHART_FILES):
        text = read_page_file(name)
        html = html.replace(text, f"/* {name} */").replace(hash_source(text), f"'hash of {name}'")
    return html
