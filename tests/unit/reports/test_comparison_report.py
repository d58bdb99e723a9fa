"""What the reports of a comparison say first, and that no format says another thing or lets a name act."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import reviewed
from builders import (
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_finding,
    a_graph,
    a_measurement,
    a_pair,
    a_recommendation,
    a_subject,
    a_total,
    a_trace,
    a_trial,
    channels_last,
    contiguous,
    kernels,
    recorded,
)
from golden.comparison_stories import COMPARISON_STORIES
from hostile_records import hostile_diagnosis

from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.changes.models import compare_models
from layoutdoctor.examination.changes.traces import compare_traces
from layoutdoctor.reports import COMPARISON_FORMATS, render_comparison

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import Total

HOSTILE = "\x1b[31mred\x07\r\nnew | line `code` <script>alert(1)</script> </details> [x](y) *b* \u202e\u2028 ```"
OPERATIONS = ("aten::cudnn_convolution", "aten::relu", "aten::add", "aten::batch_norm")


def conversions(count: int, **changes: Any) -> tuple[Conversion, ...]:
    fields: dict[str, Any] = {
        "op": "aten::cudnn_convolution",
        "module": "layer1.0",
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "seconds": 101.2e-6,
        "exposed_seconds": 101.2e-6,
        "location": None,
    }
    return tuple(a_conversion(f"c{number}", **{**fields, **changes}) for number in range(count))


def totals(*more: Total, count: int = 10, steps: int = 0) -> tuple[Total, ...]:
    return (
        *(a_total("operation", name, count=count) for name in OPERATIONS),
        *(a_total("kernel", f"{name}_kernel", count=count) for name in OPERATIONS),
        *(a_total("step", f"ProfilerStep#{n}", seconds=20e-3) for n in range(steps)),
        *more,
    )


def a_run(*found: Conversion, name: str = "old.json.gz", pairs: int = 0, **changes: Any) -> Diagnosis:
    environment = changes.pop("environment", {})
    summary = recorded(*found, **{"seconds": 40e-3, "totals": totals(), **changes})
    redundant = tuple(a_pair("c0", "c1", module=f"layer{n}") for n in range(pairs))
    return a_trace(summary, redundant_pairs=redundant, subject={"name": name}, environment=environment)


def saving() -> TraceComparison:
    old = a_run(*conversions(8), pairs=2, convolution_seconds=2e-3, totals=totals(a_total("kernel", "gone"), steps=2))
    new = a_run(*conversions(2), name="new.json.gz", convolution_seconds=2e-3, totals=totals(steps=2))
    return compare_traces(old, new)


def models() -> ModelComparison:
    on = a_graph(a_decision(applied=True))
    off = a_graph(a_decision(a_convolution(channels_last=False), applied=False, rule="grouped-convolution"))
    old = a_diagnosis(
        a_trial("inductor", kernels=kernels(*conversions(4)), graphs=(on,), measurement=a_measurement(10e-3)),
        a_trial("eager"),
        a_failed_trial("inductor-layout-opt-on"),
        findings=(a_finding(module=None),),
        recommendation=a_recommendation(),
    )
    new = a_diagnosis(
        a_trial("inductor", kernels=kernels(*conversions(1)), graphs=(off,), measurement=a_measurement(8e-3)),
        a_trial("inductor-layout-opt-on"),
        recommendation=a_recommendation("eager"),
    )
    return compare_models(old, new)


SAME = {"status": "same_as", "same_as": "inductor", "measurement": None, "kernels": None}
ATTENTION = tuple(a_total("operation", f"aten::attention_{n}") for n in range(20))
UNTIMED = tuple(a_total("operation", name, seconds=0.0) for name in OPERATIONS)
MANY = tuple(a_total("kernel", f"kernel_{n}_{'x' * 200}", seconds=n * 1e-6) for n in range(1, 31))
EMPTY = a_run(count=0, totals=())


def unrecorded(message: str) -> Diagnosis:
    trials = (a_trial(), a_trial("eager", kernels=None), a_trial("inductor-layout-opt-on", **SAME))
    return a_diagnosis(*trials, findings=(a_finding("LD205", severity="note", message=message),))


def slowed(by: float) -> Diagnosis:
    """Twelve configurations that stay as they are, and eight that become slower, the last one most."""
    steady = [a_trial(configuration=a_configuration(f"steady {n}"), measurement=a_measurement()) for n in range(12)]
    times = [10e-3 * (1 + by * (n + 1) / 8) for n in range(8)]
    slow = [
        a_trial(
            configuration=a_configuration(f"slow {n}"), measurement=a_measurement(*(time, time * 1.01, time * 0.99) * 8)
        )
        for n, time in enumerate(times)
    ]
    return a_diagnosis(*steady, *slow)


TRACES = {
    "conversions came": (a_run(), a_run(*conversions(2))),
    "another time alone": (a_run(*conversions(2)), a_run(*conversions(2, seconds=120.5e-6))),
    "another device": (a_run(*conversions(2)), a_run(*conversions(1), environment={"device_name": "NVIDIA B200"})),
    "the same trace": (a_run(*conversions(2)), a_run(*conversions(2))),
    "different runs": (a_run(*conversions(2)), a_run(totals=(a_total("operation", "aten::add"), *ATTENTION))),
    "different runs of unequal work": (
        a_run(*conversions(2)),
        a_run(*conversions(5), totals=(a_total("operation", "aten::cudnn_convolution", count=90), *ATTENTION)),
    ),
    "no time, no share": (
        a_run(*conversions(2), totals=UNTIMED),
        a_run(*conversions(1), totals=(*UNTIMED, a_total("operation", "aten::mm", seconds=0.0))),
    ),
    "nothing in common": (a_run(*conversions(2)), a_run(totals=(a_total("operation", "aten::mm"),))),
    "unequal work": (a_run(*conversions(3), totals=totals(count=30)), a_run(*conversions(5), totals=totals(count=50))),
    "no kernels in the old one": (EMPTY, a_run()),
    "no kernels in the new one": (a_run(), EMPTY),
    "no kernels in either": (EMPTY, EMPTY),
    "no conversions": (a_run(), a_run(seconds=50e-3)),
    "times not recorded": (
        a_run(*conversions(2, seconds=None, exposed_seconds=None), conversion_seconds=None),
        a_run(),
    ),
    "a long list": (a_run(totals=totals(*MANY)), a_run()),
    "a loose match": (
        a_run(totals=totals(a_total("kernel", "triton_poi_fused_1", seconds=1e-3))),
        a_run(totals=totals(a_total("kernel", "triton_poi_fused_2", seconds=2e-3))),
    ),
    "a regression": (a_run(*conversions(2)), a_run(*conversions(9), pairs=1)),
}
MODELS = {
    "not recorded": (unrecorded("one"), unrecorded("other")),
    "many slower": (slowed(0), slowed(2.4)),
    "too few rounds": (
        a_diagnosis(a_trial(measurement=a_measurement(10e-3))),
        a_diagnosis(a_trial(measurement=a_measurement(11e-3))),
    ),
    "another model": (a_diagnosis(), a_diagnosis(subject=a_subject(parameter_count=1))),
    "no configuration in common": (a_diagnosis(a_trial("eager")), a_diagnosis(a_trial("inductor"))),
}


def test_every_case_is_said_as_reviewed(update_golden: bool) -> None:
    compared: dict[str, Any] = {"a saving": saving(), "models of one round": models()}
    compared |= {f"traces: {name}": compare_traces(*runs) for name, runs in TRACES.items()}
    compared |= {f"models: {name}": compare_models(*runs) for name, runs in MODELS.items()}
    compared |= {f"models: {name}": compare_models(*story) for name, story in COMPARISON_STORIES.items()}
    said = {name: render_comparison(comparison) for name, comparison in compared.items()}
    said["a table that is too wide"] = render_comparison(models(), "text", 60)

    for name in ("a saving", "models: regression"):
        said[f"{name}, JSON"] = json.dumps(json.loads(render_comparison(compared[name], "json")), indent=1)
    said["Markdown of a regression"] = render_comparison(compared["models: regression"], "markdown")
    reviewed.check("comparisons", said, update=update_golden)
    for width in (1, 60, 100, 140):
        for comparison in compared.values():
            lines = render_comparison(comparison, "text", width).splitlines()
            assert not [line for line in lines if line != line.rstrip() or len(line) > max(width, 100)]


def hostile_comparisons() -> list[Any]:
    trace = hostile_diagnosis("trace_with_round_trips", HOSTILE)
    models = [hostile_diagnosis(story, HOSTILE) for story in ("unfinished_comparison", "gain_with_findings")]
    return [compare_traces(trace, a_run()), compare_traces(a_run(), trace), compare_models(*models)]


@pytest.mark.parametrize("comparison", hostile_comparisons(), ids=["old trace", "new trace", "model"])
def test_a_name_from_outside_cannot_act(comparison: Any) -> None:
    text, markdown = render_comparison(comparison), render_comparison(comparison, "markdown")

    assert "\\x1b[31mred" in text
    for character in ("\x1b", "\x07", "\r", "\u202e", "\u2028"):
        assert character not in text
        assert character not in markdown
    assert "<script" not in markdown
    assert "[x](y)" not in markdown
    assert markdown.count("<details>") == markdown.count("</details>")
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert not [line for line in tables if not line.endswith("|")]


@pytest.mark.thorough
def test_a_report_fits_into_an_issue_however_long_the_record() -> None:
    many = tuple(
        a_conversion(f"c{n}", module=f"{'deep.' * 30}{n}", op=f"aten::op_{n}{'y' * 90}", source=contiguous((n + 1, 3)))
        for n in range(2000)
    )
    names = tuple(a_total(kind, f"{'x' * 80}{n}") for kind in ("operation", "kernel", "module") for n in range(2000))
    found = tuple(
        a_finding(f"LD{100 + n % 400}", rule="x" * 90, message="y" * 900, module=f"{'deep.' * 18}{n}")
        for n in range(3000)
    )
    trials = tuple(a_trial(f"{'long' * 20}{n}", kernels=kernels(*many)) for n in range(12))
    plain = a_diagnosis(*(a_trial(trial.name) for trial in trials))
    for comparison in (
        compare_traces(a_run(*many, totals=totals(*names)), a_run()),
        compare_models(plain, a_diagnosis(*trials, findings=found)),
    ):
        markdown = render_comparison(comparison, "markdown")
        assert len(markdown) < 60_000
        assert "more left out here; the JSON report has them." in markdown


def test_another_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="cannot render a comparison as 'html': expected one of json, markdown, text"):
        render_comparison(saving(), "html")


def test_what_says_who_ran_it_and_where_is_left_out() -> None:
    file = "/home/alice/secret/model.py"
    finding = a_finding("LD501", message=f"a copy in {file}", location=SourceLocation(file=file, line=3))
    failed = a_failed_trial("eager", "RuntimeError: no file /home/alice/secret/weights.pt")
    old = a_diagnosis(a_trial(), a_trial("eager"))
    comparison = compare_models(old, a_diagnosis(a_trial(), failed, findings=(finding,)))

    for report_format in COMPARISON_FORMATS:
        report = render_comparison(comparison, report_format)
        assert "alice" not in report
        assert "model.py" in report
