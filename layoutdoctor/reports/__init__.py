"""Reports: text made from a diagnosis. The sentences are made in ``sections``; a format only arranges them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar, cast

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.files.writing import is_packed_name, write_file
from layoutdoctor.privacy import scrub

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.diagnosis.policy import Policy
    from layoutdoctor.diagnosis.record import Record
    from layoutdoctor.diagnosis.scan import Scan
    from layoutdoctor.reports.sections.rows import Overview

__all__ = ["FORMATS", "format_of_suffix", "render", "renderer_of"]

FORMATS = ("html", "json", "markdown", "reproducer", "sarif", "text")
"""Formats of a report. Each except ``json`` has a module of the same name, whose ``render_NAME`` makes the report."""

_FORMAT_BY_SUFFIX = {
    ".htm": "html",
    ".html": "html",
    ".json": "json",
    ".json.gz": "json",
    ".markdown": "markdown",
    ".md": "markdown",
    ".py": "reproducer",
    ".sarif": "sarif",
    ".txt": "text",
}
INSTEAD_OF_JUNIT = "layoutdoctor writes no JUnit; pytest writes it (--junit-xml FILE), and --fail-on and SARIF serve CI"

_ELSEWHERE = {"render_fragment": "html", "to_pandas": "frames"}
"""Further functions that records call, with the modules that define them; a module is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)


def render(diagnosis: Diagnosis, report_format: str = "text") -> str:
    """
    Returns the report of a diagnosis, without user names, host names and private paths.

    Args:
        report_format: ``text``, ``markdown``, ``json``, ``html``, ``sarif`` or ``reproducer``.

    Raises:
        UsageError: There is no such format.
    """
    return renderer_of(report_format)(scrub(diagnosis))


def renderer_of(report_format: str) -> Callable[[Diagnosis], str]:
    """
    Returns the function that makes the report in a format; its argument has to be scrubbed already.

    Raises:
        UsageError: There is no such format.
    """
    if report_format == "junit":
        raise UsageError(f"cannot render as 'junit': {INSTEAD_OF_JUNIT}")
    if report_format not in FORMATS:
        raise UsageError(f"cannot render as {report_format!r}: expected one of {', '.join(FORMATS)}")
    return render_json if report_format == "json" else _function("render", report_format)


def _function(verb: str, report_format: str) -> Callable[..., str]:
    return cast("Callable[..., str]", getattr(import_module(f"{__name__}.{report_format}"), f"{verb}_{report_format}"))


Compared = TypeVar("Compared", bound="Record")
COMPARISON_FORMATS = ("json", "markdown", "text")
SCAN_FORMATS = ("html", *COMPARISON_FORMATS)


def render_comparison(
    comparison: TraceComparison | ModelComparison, report_format: str = "text", width: int | None = None
) -> str:
    """
    Returns the report of a comparison, without user names, host names and private paths.

    Args:
        report_format: ``text``, ``markdown`` or ``json``.
        width: Characters per line of the text; None for 100.

    Raises:
        UsageError: There is no such format.
    """
    from layoutdoctor.reports.sections.compared import build_comparison_view

    return _render_overview(comparison, "comparison", build_comparison_view, report_format, width)


def render_scan(scan: Scan, report_format: str = "text", width: int | None = None) -> str:
    """Returns the report of a scan, in the formats of ``render_comparison`` or as ``html``."""
    from layoutdoctor.reports.sections.scanned import build_scan_view

    build = partial(build_scan_view, in_full=report_format != "text")
    return _render_overview(scan, "scan", build, report_format, width)


def render_policy(policy: Policy, report_format: str = "text", width: int | None = None) -> str:
    """Returns the report of a policy, in the formats of ``render_comparison``."""
    from layoutdoctor.reports.sections.policy import build_policy_view

    return _render_overview(policy, "policy", build_policy_view, report_format, width)


def check_format(report_format: str, what: str = "comparison") -> None:
    """
    Refuses a format in which a comparison, a policy or a scan cannot be rendered.

    Raises:
        UsageError: There is no such format.
    """
    formats = SCAN_FORMATS if what == "scan" else COMPARISON_FORMATS
    if report_format not in formats:
        raise UsageError(f"cannot render a {what} as {report_format!r}: expected one of {', '.join(formats)}")


def _render_overview(
    record: Compared, what: str, build: Callable[[Compared], Overview], report_format: str, width: int | None
) -> str:
    check_format(report_format, what)
    record = scrub(record)
    if report_format == "json":
        return to_json(record).decode()
    overview = _function("overview", report_format)
    return overview(build(record), width) if report_format == "text" else overview(build(record))


def save(diagnosis: Diagnosis, path: str | PurePath) -> None:
    """
    Writes the report in the format of the file's suffix. A JSON file that is read back is the scrubbed diagnosis.

    Raises:
        UsageError: No format has this suffix.
        OSError: The file cannot be written.
    """
    write_file(Path(path), render(diagnosis, format_of_suffix(path)))


def one_line(diagnosis: Diagnosis) -> str:
    """Returns the subject and the claim on one line, as the ``repr`` of a diagnosis."""
    from layoutdoctor.reports.sections.view import build_view
    from layoutdoctor.reports.sections.wording import clean

    view = build_view(scrub(diagnosis))
    return clean(f"<Diagnosis of {', '.join(view.title[:3])}: {view.answer.claim}>", 200)


def render_json(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as JSON, with every number, as the schema describes it."""
    return to_json(diagnosis).decode()


def format_of_suffix(path: str | PurePath) -> str:
    """
    Returns the format for a file's name; the case of the suffix does not matter.

    Raises:
        UsageError: The name has no suffix, or its suffix belongs to no format.
    """
    suffixes = PurePath(path).suffixes
    suffix = "".join(suffixes[-2:] if is_packed_name(path) else suffixes[-1:]).lower()
    if suffix == ".xml":
        raise UsageError(f"cannot write {str(path)!r}: {INSTEAD_OF_JUNIT}")
    if suffix not in _FORMAT_BY_SUFFIX:
        raise UsageError(
            f"cannot tell the format of {str(path)!r}: got suffix {suffix!r}, "
            f"expected one of {', '.join(_FORMAT_BY_SUFFIX)}"
        )
    return _FORMAT_BY_SUFFIX[suffix]
