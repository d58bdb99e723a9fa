"""The pytest plugin, in runs of pytest of its own; those that bring torch, or must not, in a process of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import a_conversion, a_diagnosis, a_graph, a_node, a_pair, a_trial, kernels

from layoutdoctor.diagnosis.accepted import accept_all, save_accepted
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.reports import render
from layoutdoctor.rules import run_rules
from layoutdoctor.testing import assert_no_redundant_conversions

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

GRAPH = a_graph(nodes=(a_node("relu"),))
HEALTHY = a_diagnosis(a_trial("inductor", graphs=(GRAPH,)))
CONVERSIONS = tuple(a_conversion(f"reorder {n}", node="relu", graph="graph 0", port="output 0") for n in range(2))
PLAIN = a_diagnosis(a_trial("inductor", graphs=(GRAPH,), redundant_pairs=(a_pair(),), kernels=kernels(*CONVERSIONS)))
WASTING = a_diagnosis(*PLAIN.trials, findings=run_rules(PLAIN))

HEAD = "import layoutdoctor, pytest\n\n"
BODY = "    assert_no_redundant_conversions(layoutdoctor.load('{name}.json'){options})\n"


def a_test(name: str = "wasting", marker: str = "", options: str = "") -> str:
    decorated = f"@pytest.mark.layouts({marker})\n" if marker else ""
    return (
        f"{HEAD}{decorated}def test_it(assert_no_redundant_conversions):\n"
        f"{BODY.format(name=name, options=f', {options}' if options else '')}"
    )


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with two saved diagnoses; what its tests import is loaded here, so that no run loads it anew."""
    assert assert_no_redundant_conversions(HEALTHY) is HEALTHY
    assert render(HEALTHY)
    for name, diagnosis in (("healthy", HEALTHY), ("wasting", WASTING)):
        diagnosis.save(pytester.path / f"{name}.json")
    return pytester


OPTIONS = ("-p", "no:cacheprovider", "--strict-markers", "-W", "error")


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def run_alone(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess(*OPTIONS, *options)


def test_round_trips_fail_the_test_with_where_they_are(project: pytest.Pytester) -> None:
    result = run(project, a_test("healthy") + a_test("wasting").replace("test_it", "test_other").removeprefix(HEAD))

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: 1 redundant conversion pair in model.py (inference, cpu, inductor): 2.00 ms*",
            "E*model.py:9*body.1.0*",
        ]
    )
    result.stdout.no_fnmatch_line("*testing.py:*")


@pytest.mark.parametrize(
    ("marker", "options", "outcome"),
    [
        ("max_share=0.5", "", "passed"),
        ("accepted=('body.1.0',)", "", "passed"),
        ("max_share=0.5", "max_share=0.01", "failed"),
        ("max_shear=0.5", "", "failed"),
        ("0.5", "", "failed"),
    ],
)
def test_the_marker_sets_what_is_checked_and_the_call_has_the_last_word(
    marker: str, options: str, outcome: str, project: pytest.Pytester
) -> None:
    run(project, a_test(marker=marker, options=options)).assert_outcomes(**{outcome: 1})


def test_a_wrong_share_is_refused_before_a_model_is_diagnosed(project: pytest.Pytester) -> None:
    text = """\
import layoutdoctor.testing

def test_it(assert_no_redundant_conversions, monkeypatch):
    monkeypatch.setattr(layoutdoctor.run.diagnose, "record_only", None)
    assert_no_redundant_conversions(lambda x: x, 1.0, max_share=1.5)
"""
    run(project, text).stdout.fnmatch_lines(["E*UsageError: cannot allow a share of 1.5: expected a part of*"])


def test_a_markers_setting_holds_for_a_module_and_the_nearest_one_wins(project: pytest.Pytester) -> None:
    source = (
        f"{HEAD}pytestmark = pytest.mark.layouts(max_share=0.5)\n\n"
        f"def test_loose(assert_no_redundant_conversions):\n{BODY.format(name='wasting', options='')}\n"
        "@pytest.mark.layouts(max_share=0.0)\n"
        f"def test_strict(assert_no_redundant_conversions):\n{BODY.format(name='wasting', options='')}\n"
    )

    run(project, source).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("setting", "outcome"),
    [
        ("layoutdoctor_max_share = 0.5", "passed"),
        ("layoutdoctor_max_share = much", "failed"),
        ("layoutdoctor_accepted = accepted.json", "passed"),
        ("layoutdoctor_accepted = none.json", "failed"),
    ],
)
def test_the_projects_settings_hold_everywhere(setting: str, outcome: str, project: pytest.Pytester) -> None:
    save_accepted(project.path / "accepted.json", accept_all(WASTING))
    project.makeini(f"[pytest]\n{setting}\n")

    run(project, a_test()).assert_outcomes(**{outcome: 1})


def reports_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_diagnosis_of_a_failing_test_is_written_where_that_was_asked_for(project: pytest.Pytester) -> None:
    source = a_test() + a_test("healthy").replace("test_it", "test_other").removeprefix(HEAD)

    result = run(project, source, "--layoutdoctor-report", "reports/layouts")

    result.assert_outcomes(passed=1, failed=1)
    names = reports_in(project.path / "reports" / "layouts")
    assert [name.rsplit("-", 1)[0] for name in names] == [f"{project.path.name[:-1]}.py__test_it"] * 2
    assert [name.rsplit(".", 1)[1] for name in names] == ["json", "md"]
    assert load(project.path / "reports" / "layouts" / names[0]).redundant_pairs
    assert (project.path / "reports" / "layouts" / names[1]).read_text().startswith("## model.py · ")
    result.stdout.fnmatch_lines(["*- layoutdoctor -*", f"wrote reports/layouts/{names[1]}"])


def test_a_run_that_does_not_use_it_loads_nothing_heavy(project: pytest.Pytester) -> None:
    source = (
        "import sys\n\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('layoutdoctor')\n"
        "    heavy = {'torch', 'triton', 'networkx', 'numpy', 'rich', 'jinja2', 'tabulate', 'pandas'}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert 'layoutdoctor.testing' not in sys.modules and 'layoutdoctor.rules' not in sys.modules\n"
    )

    run_alone(project, source, "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_the_marker_and_the_options_are_listed(project: pytest.Pytester) -> None:
    project.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.layouts(mode='inference', *"])
    project.runpytest_inprocess("--help").stdout.fnmatch_lines(["*--layoutdoctor-report=DIR*"])


FAKED = """
from layoutdoctor.run import diagnose

@pytest.fixture(autouse=True)
def asked(monkeypatch):
    calls = []
    def record_only(model, example_input, **options):
        calls.append((model, example_input, options))
        return layoutdoctor.load("wasting.json")
    monkeypatch.setattr(diagnose, "record_only", record_only)
    return calls

@pytest.mark.layouts(mode="training", configurations="eager", max_share=0.5)
def test_checked(assert_no_redundant_conversions, asked):
    assert assert_no_redundant_conversions("model", "x").redundant_pairs
    assert asked == [("model", "x", {"mode": "training", "configurations": "eager"})]

@pytest.mark.layouts(mode="training", max_share=0.5)
def test_diagnosed(layout_diagnosis, assert_no_redundant_conversions, asked):
    diagnosis = layout_diagnosis("model", "x", configurations="inductor")
    assert asked == [("model", "x", {"mode": "training", "configurations": "inductor"})]
    assert assert_no_redundant_conversions(diagnosis, configurations="inductor", mode="inference") is diagnosis
    raise ValueError("as a test that fails of something else")

def test_refused(layout_diagnosis, asked):
    with pytest.raises(layoutdoctor.LayoutDoctorError, match="cannot use 'modes' to check layouts"):
        layout_diagnosis("model", "x", modes="training")
    assert asked == []

def test_both(assert_no_redundant_conversions, asked):
    with pytest.raises(layoutdoctor.LayoutDoctorError, match="cannot use an example input with a ready Diagnosis"):
        assert_no_redundant_conversions(layoutdoctor.load("healthy.json"), "x")
    assert asked == []
"""


def test_what_is_diagnosed_is_what_marker_and_call_say_and_is_reported_once(project: pytest.Pytester) -> None:
    run(project, HEAD + FAKED, "--layoutdoctor-report", "out").assert_outcomes(passed=3, failed=1)

    assert [name.rsplit("-", 1)[0].rsplit("__", 1)[1] for name in reports_in(project.path / "out")] == [
        "test_diagnosed",
        "test_diagnosed",
    ]


REAL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(32, 32, 3, padding=1))

X = torch.randn(4, 3, 96, 96)

def test_compiled(assert_no_redundant_conversions):
    diagnosis = assert_no_redundant_conversions(Net().eval(), X)
    assert [trial.name for trial in diagnosis.trials] == ["inductor"]

@pytest.mark.layouts(configurations="eager")
def test_eager(assert_no_redundant_conversions):
    assert_no_redundant_conversions(Net().eval(), (X,))

@pytest.mark.layouts(mode="training", configurations=["inductor"])
def test_training(layout_diagnosis):
    assert layout_diagnosis(Net(), X).subject.mode == "training"
"""


@pytest.mark.compile
def test_models_are_checked(project: pytest.Pytester) -> None:
    result = run_alone(project, HEAD + REAL, "--layoutdoctor-report", "out")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_eager*", "E*AssertionError: * redundant conversion pair*"])
    (saved,) = (project.path / "out").glob("*.json")
    assert isinstance(load(saved), Diagnosis)
    assert load(saved).redundant_pairs
