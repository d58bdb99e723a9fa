"""
The pytest plugin: fixtures and a marker that hold a model to its layouts.

pytest loads this in every run of everybody who has layoutdoctor installed, so it imports nothing but pytest until a
test asks for a fixture, and its hooks do nothing for a test that did not.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

MARKER = "layouts"
_MARKER_HELP = (
    f"{MARKER}(mode='inference', configurations=('inductor',), accepted=(), max_share=0.0, allow_gaps=False): what "
    "assert_no_redundant_conversions and layout_diagnosis check in this test (layoutdoctor)"
)
_OPTIONS = ("mode", "configurations", "accepted", "max_share", "allow_gaps")
_DIAGNOSES = pytest.StashKey[list["Diagnosis"]]()
_LONGEST_NAME = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command line and of the configuration file."""
    group = parser.getgroup("layoutdoctor", "memory layouts")
    group.addoption(
        "--layoutdoctor-report",
        metavar="DIR",
        default=None,
        help="write the diagnoses of failing tests to this directory, as Markdown and as JSON",
    )
    parser.addini("layoutdoctor_report", "directory for the diagnoses of failing tests", default="")
    parser.addini("layoutdoctor_accepted", "file of accepted findings, relative to the root directory", default="")
    parser.addini(
        "layoutdoctor_configurations", "configurations to check, inductor by default", type="args", default=[]
    )
    parser.addini("layoutdoctor_max_share", "part of the kernel time that round trips may take, 0 to 1", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known, so that ``--strict-markers`` takes it."""
    config.addinivalue_line("markers", _MARKER_HELP)


@pytest.fixture
def assert_no_redundant_conversions(request: pytest.FixtureRequest) -> Callable[..., Diagnosis]:
    """``layoutdoctor.assert_no_redundant_conversions`` with the test's marker and the project's settings applied."""
    from layoutdoctor import testing
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

    def check(model: Any, example_input: Any = None, **changes: Any) -> Diagnosis:
        __tracebackhide__ = True
        options = {**_settings(request), **changes}
        _refuse_unknown(options)
        if not isinstance(model, Diagnosis):
            chosen: dict[str, Any] = {name: options.pop(name) for name in ("mode", "configurations") if name in options}
            model = _diagnose(request, model, example_input, chosen)
            options["configurations"] = tuple(trial.configuration for trial in model.trials)
        elif example_input is not None:
            options["example_input"] = example_input  # refused there, with the reason
        _remember(request, model)
        return testing.assert_no_redundant_conversions(model, **options)

    return check


@pytest.fixture
def layout_diagnosis(request: pytest.FixtureRequest) -> Callable[..., Diagnosis]:
    """A function that diagnoses a model the way the assertion does, and returns the diagnosis."""

    def diagnose(model: Any, example_input: Any, **changes: Any) -> Diagnosis:
        options = {**_settings(request), **changes}
        _refuse_unknown(options)
        chosen: dict[str, Any] = {name: options[name] for name in ("mode", "configurations") if name in options}
        return _diagnose(request, model, example_input, chosen)

    return diagnose


def _diagnose(request: pytest.FixtureRequest, model: Any, example_input: Any, options: dict[str, Any]) -> Diagnosis:
    from layoutdoctor import testing

    diagnosis = testing.diagnose_quickly(model, example_input, **options)
    _remember(request, diagnosis)
    return diagnosis


def _remember(request: pytest.FixtureRequest, diagnosis: Diagnosis) -> None:
    known = request.node.stash.setdefault(_DIAGNOSES, [])
    if not any(other is diagnosis for other in known):
        known.append(diagnosis)


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The project's settings, then the markers, from the module's to the test's own."""
    settings: dict[str, Any] = {}
    config = request.config
    accepted = config.getini("layoutdoctor_accepted")
    if accepted:
        settings["accepted"] = str(config.rootpath / accepted)
    configurations = config.getini("layoutdoctor_configurations")
    if configurations:
        settings["configurations"] = tuple(configurations)
    max_share = config.getini("layoutdoctor_max_share")
    if max_share:
        settings["max_share"] = _share(max_share)
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise _usage_error(f"cannot use {marker.args[0]!r} in the marker {MARKER!r}: expected keywords only")
        settings.update(marker.kwargs)
    return settings


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _usage_error(
            f"cannot use layoutdoctor_max_share = {text!r}: expected a number from 0 to 1, such as 0.02"
        ) from None


def _refuse_unknown(options: dict[str, Any]) -> None:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise _usage_error(f"cannot use {unknown[0]!r} to check layouts: expected one of {', '.join(sorted(_OPTIONS))}")


def _usage_error(message: str) -> Exception:
    from layoutdoctor.errors import UsageError

    return UsageError(message)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes the diagnoses of a failing test, where that was asked for."""
    report = yield
    diagnoses = item.stash.get(_DIAGNOSES, None)
    if diagnoses and report.failed and call.when == "call":
        directory = item.config.getoption("--layoutdoctor-report") or item.config.getini("layoutdoctor_report")
        if directory:
            report.sections.append(("layoutdoctor", _write(item, diagnoses, directory)))
    return report


def _write(item: pytest.Item, diagnoses: list[Diagnosis], directory: str) -> str:
    """What was written where; a failure to write is said as well, and hides no failing test."""
    written = []
    try:
        from layoutdoctor.diagnosis.writing import write_file
        from layoutdoctor.reports import render

        folder = item.config.invocation_params.dir / directory
        folder.mkdir(parents=True, exist_ok=True)
        for number, diagnosis in enumerate(diagnoses):
            stem = _file_stem(item.nodeid, number)
            for suffix, report_format in ((".md", "markdown"), (".json", "json")):
                path = folder / f"{stem}{suffix}"
                write_file(path, render(diagnosis, report_format))
                written.append(f"wrote {_shown(path, item.config.invocation_params.dir)}")
    except Exception as error:  # the test's own failure is what matters
        written.append(f"cannot write the diagnosis to {directory!r}: {type(error).__name__}: {error}")
    return "\n".join(written)


def _shown(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _file_stem(nodeid: str, number: int) -> str:
    """A file name made from a test's id; ids that would give the same one differ in the hash at its end."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.replace("::", "."))
    digest = sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{name[-_LONGEST_NAME:].strip('-.')}-{digest}{f'-{number}' if number else ''}"
