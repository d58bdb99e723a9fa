"""
Reports: text made from a diagnosis. What is said is decided in ``view``; a format only arranges it.

A new format is one file with one function, and one line in ``RENDERERS``. Faces the command line and the public API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import MappingProxyType

from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import scrub
from layoutdoctor.records import Diagnosis
from layoutdoctor.reports.ci.junit import render_junit
from layoutdoctor.reports.ci.sarif import render_sarif
from layoutdoctor.reports.html.report import render_html
from layoutdoctor.reports.json_report import render_json
from layoutdoctor.reports.markdown.report import render_markdown
from layoutdoctor.reports.reproducer.report import render_reproducer
from layoutdoctor.reports.text import render_text

__all__ = ["FORMAT_BY_SUFFIX", "RENDERERS", "Renderer", "format_of_suffix", "render", "renderer_of"]

Renderer = Callable[[Diagnosis], str]

RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {
        "html": render_html,
        "json": render_json,
        "junit": render_junit,
        "markdown": render_markdown,
        "reproducer": render_reproducer,
        "sarif": render_sarif,
        "text": render_text,
    }
)

FORMAT_BY_SUFFIX: Mapping[str, str] = MappingProxyType(
    {
        ".htm": "html",
        ".html": "html",
        ".json": "json",
        ".markdown": "markdown",
        ".md": "markdown",
        ".py": "reproducer",
        ".sarif": "sarif",
        ".txt": "text",
        ".xml": "junit",
    }
)


def render(diagnosis: Diagnosis, report_format: str = "text") -> str:
    """
    The report of a diagnosis, without what says who ran it and where: reports are made for others, also the text.

    Args:
        diagnosis: Any diagnosis.
        report_format: ``text``, ``markdown``, ``json``, ``html``, ``sarif``, ``junit`` or ``reproducer``.

    Raises:
        UsageError: There is no such format.
    """
    return renderer_of(report_format)(scrub(diagnosis))


def renderer_of(report_format: str) -> Renderer:
    """
    What makes the report of a diagnosis that is scrubbed already.

    Args:
        report_format: As for ``render``.

    Raises:
        UsageError: There is no such format.
    """
    try:
        return RENDERERS[report_format]
    except KeyError:
        raise UsageError(
            f"cannot render as {report_format!r}: expected one of {', '.join(sorted(RENDERERS))}"
        ) from None


def format_of_suffix(path: str | PurePath) -> str:
    """
    The format that a file's name asks for.

    Args:
        path: A file's path; the case of its suffix does not matter.

    Raises:
        UsageError: The name has no suffix, or one that stands for no format.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix not in FORMAT_BY_SUFFIX:
        raise UsageError(
            f"cannot tell the format of {str(path)!r}: got suffix {suffix!r}, "
            f"expected one of {', '.join(sorted(FORMAT_BY_SUFFIX))}"
        )
    return FORMAT_BY_SUFFIX[suffix]
