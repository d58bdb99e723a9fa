"""
Where a finding stands, for machines: paths that mean the same on every checkout, a file for findings without a line.

Faces the SARIF and JUnit reports.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Diagnosis, SourceLocation

_INSTALLED = re.compile(r"(?:^|/)((?:site|dist)-packages/.+)$")
_DRIVE = re.compile(r"^[A-Za-z]:")
_NO_FILE = re.compile(r"^<[^/]*$")  # such as <string>; <path>/model.py is a file whose folders were taken out
_PYTHON_FILE = re.compile(r"^(?P<file>[^:]+\.py)(?::.*)?$")


def project_path(file: str) -> str | None:
    """
    A path within the project, with forward slashes; never an absolute one, and none that leads out of the project.

    Installed packages stay readable from ``site-packages`` on. A file below the present directory is relative to it; of
    any other one the name alone is left.

    Args:
        file: A path as Python, or a trace, reported it.

    Returns:
        The path; None for what is no file, such as ``<string>``.
    """
    path = file.replace("\\", "/").strip()
    if not path or path.endswith("/") or _NO_FILE.match(path):
        return None
    installed = _INSTALLED.search(path)
    if installed is not None:
        path = installed[1]
    elif path.startswith("/") or _DRIVE.match(path):
        path = _below_here(path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        return None
    if ".." in parts or parts[0].startswith(("~", "<")) or _DRIVE.match(parts[0]):
        last = _DRIVE.sub("", parts[-1])
        return last if last not in ("", "..") else None
    return "/".join(parts)


def _below_here(path: str) -> str:
    here = Path.cwd().as_posix().rstrip("/") + "/"
    return path.removeprefix(here) if path.startswith(here) and here != "/" else path.rsplit("/", 1)[-1]


def subject_file(diagnosis: Diagnosis) -> str | None:
    """
    The file to show a finding on that names no line: the subject's own, else the one most of its operations come from.

    Args:
        diagnosis: Any diagnosis.

    Returns:
        A project path; None where none is known. For a trace without source lines it is the trace.
    """
    counted = Counter(
        path
        for location in _locations(diagnosis)
        if (path := project_path(location.file)) is not None
        and not path.startswith(("site-packages/", "dist-packages/"))
    )
    named = _PYTHON_FILE.match(diagnosis.subject.name)
    if named is not None:
        own = [path for path, _ in counted.most_common() if path.rsplit("/", 1)[-1] == named["file"]]
        return own[0] if own else project_path(named["file"])
    if counted:
        return max(counted.items(), key=lambda item: (item[1], item[0]))[0]
    return project_path(diagnosis.subject.name) if diagnosis.subject.mode == "trace" else None


def _locations(diagnosis: Diagnosis) -> Iterator[SourceLocation]:
    graphs = [graph for trial in diagnosis.trials for graph in trial.graphs]
    found = [node.location for graph in graphs for node in graph.nodes]
    found += [conversion.location for graph in graphs for conversion in graph.conversions]
    found += [finding.location for finding in diagnosis.findings]
    yield from (location for location in found if location is not None)
