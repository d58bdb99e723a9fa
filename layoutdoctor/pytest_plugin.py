"""
The pytest plugin: fixtures and a marker for tests of a model's layouts.

pytest loads this plugin in every run, wherever layoutdoctor is installed. So it imports little until a test asks for a
fixture, and its hooks do nothing for other tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pytest

from layoutdoctor.diagnosis import Diagnosis

MARKER = "layouts"
_MARKER_HELP = (
    f"{MARKER}(mode='inference', configurations=('inductor',), accepted=(), max_share=0.0, allow_gaps=False): what "
    "assert_no_redundant_conversions and layout_diagnosis check in this test (layoutdoctor)"
)
_OPTIONS = {"mode", "configurations", "accepted", "max_share", "allow_gaps"}
_DIAGNOSES = pytest.StashKey[list["Diagnosis"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the command line and of the configuration file."""
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
    """Registers the marker, so that ``--strict-markers`` accepts it."""
    config.addinivalue_line("markers", _MARKER_HELP)


@pytest.fixture
def assert_no_redundant_conversions(request: pytest.FixtureRequest) -> Callable[..., Diagnosis]:
    """Provides ``layoutdoctor.assert_no_redundant_conversions`` with the options of the marker and the project."""
    from layoutdoctor import testing
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

    def check(model: Any, example_input: Any = None, **changes: Any) -> Diagnosis:
        __tracebackhide__ = True
        options = _options(request, changes)
        testing.check_share(options.get("max_share", 0.0))
        if not isinstance(model, Diagnosis):
            model, example_input = _diagnose(request, model, example_input, options), None
            options |= {"mode": "inference", "configurations": tuple(trial.configuration for trial in model.trials)}
        _remember(request, model)
        return testing.assert_no_redundant_conversions(model, example_input, **options)

    return check


@pytest.fixture
def layout_diagnosis(request: pytest.FixtureRequest) -> Callable[..., Diagnosis]:
    """Provides a function that diagnoses a model in the same way as the assertion, and returns the diagnosis."""

    def diagnose(model: Any, example_input: Any, **changes: Any) -> Diagnosis:
        return _diagnose(request, model, example_input, _options(request, changes))

    return diagnose


def _diagnose(request: pytest.FixtureRequest, model: Any, example_input: Any, options: dict[str, Any]) -> Diagnosis:
    from layoutdoctor.run.diagnose import record_only

    chosen = {name: options[name] for name in ("mode", "configurations") if name in options}
    diagnosis = record_only(model, example_input, **chosen)
    _remember(request, diagnosis)
    return diagnosis


def _remember(request: pytest.FixtureRequest, diagnosis: Diagnosis) -> None:
    known = request.node.stash.setdefault(_DIAGNOSES, [])
    if not any(other is diagnosis for other in known):
        known.append(diagnosis)


def _options(request: pytest.FixtureRequest, changes: dict[str, Any]) -> dict[str, Any]:
    """
    Combines the options of a check; raises ``UsageError`` for an unknown option or a marker's positional argument.

    The call's arguments override markers, markers override the project's settings. The marker nearest to the test wins.
    """
    from layoutdoctor.errors import UsageError

    config = request.config
    options: dict[str, Any] = {}
    if accepted := config.getini("layoutdoctor_accepted"):
        options["accepted"] = str(config.rootpath / accepted)
    if configurations := config.getini("layoutdoctor_configurations"):
        options["configurations"] = tuple(configurations)
    if max_share := config.getini("layoutdoctor_max_share"):
        options["max_share"] = max_share
        with contextlib.suppress(ValueError):  # the assertion refuses a text that is not a number
            options["max_share"] = float(max_share)
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise UsageError(f"cannot use {marker.args[0]!r} in the marker {MARKER!r}: expected keywords only")
        options |= marker.kwargs
    options |= changes
    if unknown := sorted(options.keys() - _OPTIONS):
        raise UsageError(f"cannot use {unknown[0]!r} to check layouts: expected one of {', '.join(sorted(_OPTIONS))}")
    return options


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes the diagnoses of a failing test, if a directory for them was given."""
    report = yield
    diagnoses = item.stash.get(_DIAGNOSES, None)
    if diagnoses and report.failed and call.when == "call":
        directory = item.config.getoption("--layoutdoctor-report") or item.config.getini("layoutdoctor_report")
        if directory:
            report.sections.append(("layoutdoctor", _write(item, diagnoses, directory)))
    return report


def _write(item: pytest.Item, diagnoses: list[Diagnosis], directory: str) -> str:
    """Writes the diagnoses; returns a line for each written file, and a last line for an error."""
    from layoutdoctor.files.writing import file_name_of

    written = []
    base, stem = item.config.invocation_params.dir, file_name_of(item.nodeid)
    try:
        (base / directory).mkdir(parents=True, exist_ok=True)
        for number, diagnosis in enumerate(diagnoses):
            for suffix in (".md", ".json"):
                path = base / directory / f"{stem}{f'-{number}' if number else ''}{suffix}"
                diagnosis.save(path)
                written.append(f"wrote {path.relative_to(base) if path.is_relative_to(base) else path}")
    except Exception as error:  # the test's own failure is more important
        written.append(f"cannot write the diagnosis to {directory!r}: {type(error).__name__}: {error}")
    return "\n".join(written)
