"""What the reports of a comparison say first, and that no format says another thing or lets a name act."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
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
from loops import for_each

from layoutdoctor.diagnosis.records import Finding, SourceLocation
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.changes.models import compare_models
from layoutdoctor.examination.changes.traces import compare_traces
from layoutdoctor.reports.comparison import COMPARISON_FORMATS, render_comparison
from layoutdoctor.reports.markdown import MOST_CHARACTERS

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Total

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


def report(old: Diagnosis, new: Diagnosis, report_format: str = "text") -> str:
    return render_comparison(compare_traces(old, new), report_format)


def headline(old: Diagnosis, new: Diagnosis) -> str:
    return report(old, new).split("\n\n")[1].splitlines()[0]


def saving() -> TraceComparison:
    old = a_run(*conversions(8), pairs=2, convolution_seconds=2e-3, totals=totals(a_total("kernel", "gone"), steps=2))
    new = a_run(*conversions(2), name="new.json.gz", convolution_seconds=2e-3, totals=totals(steps=2))
    return compare_traces(old, new)


def models() -> ModelComparison:
    on = a_graph(a_decision(applied=True))
    off = a_graph(a_decision(a_convolution(channels_last=False), applied=False, rule="grouped-convolution"))
    finding = Finding(
        code="LD101",
        rule="round-trip-conversion",
        severity="warning",
        configuration="inductor",
        message="there and back",
    )
    old = a_diagnosis(
        a_trial("inductor", kernels=kernels(*conversions(4)), graphs=(on,), measurement=a_measurement(10e-3)),
        a_trial("eager"),
        a_failed_trial("inductor-layout-opt-on"),
        findings=(finding,),
        recommendation=a_recommendation(),
    )
    new = a_diagnosis(
        a_trial("inductor", kernels=kernels(*conversions(1)), graphs=(off,), measurement=a_measurement(8e-3)),
        a_trial("inductor-layout-opt-on"),
        recommendation=a_recommendation("eager"),
    )
    return compare_models(old, new)


def test_what_two_diagnoses_do_not_record_is_no_number() -> None:
    same = {"status": "same_as", "same_as": "inductor", "measurement": None, "kernels": None}

    def run(message: str) -> Diagnosis:
        finding = Finding(
            code="LD205", rule="input-format-mismatch", severity="note", configuration="inductor", message=message
        )
        trials = (a_trial(), a_trial("eager", kernels=None), a_trial("inductor-layout-opt-on", **same))
        return a_diagnosis(*trials, findings=(finding,))

    lines = render_comparison(compare_models(run("one"), run("other"))).splitlines()

    (eager,) = (line for line in lines if line.startswith("eager "))
    (finding,) = (line for line in lines if "LD205" in line)
    assert eager.split()[-4:] == ["not", "recorded", "not", "recorded"]
    assert finding.split()[-1] == "-"
    assert "inductor-layout-opt-on  the same as inductor in both" in lines


def test_of_many_configurations_that_became_slower_the_largest_are_named_and_the_rest_counted() -> None:
    def run(slower: float) -> Diagnosis:
        steady = [a_configuration(f"steady {number}") for number in range(12)]
        slow = [a_configuration(f"slow {number}") for number in range(8)]
        trials = [a_trial(configuration=one, measurement=a_measurement()) for one in steady]
        times = [10e-3 * (1 + slower * (number + 1) / 8) for number in range(8)]
        trials += [
            a_trial(configuration=one, measurement=a_measurement(*(time, time * 1.01, time * 0.99) * 8))
            for one, time in zip(slow, times, strict=True)
        ]
        return a_diagnosis(*trials)

    lines = [line for line in render_comparison(compare_models(run(0), run(2.4))).splitlines() if "low" in line]

    assert [line.split(" takes")[0] for line in lines if line.startswith("Slower: slow")] == [
        f"Slower: slow {number}" for number in (7, 6, 5, 4, 3, 2)
    ]
    assert "Slower: 2 more, in the table" in lines


def test_where_no_length_fits_the_shortest_report_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report(a_run(*conversions(9)), a_run(), "markdown")
    monkeypatch.setattr("layoutdoctor.reports.comparison.MOST_CHARACTERS", 10)
    short = report(a_run(*conversions(9)), a_run(), "markdown")

    assert len(short) < len(whole)
    assert short.splitlines()[:3] == whole.splitlines()[:3]


def test_the_first_lines_say_what_was_saved_and_what_went() -> None:
    lines = render_comparison(saving()).splitlines()

    assert lines[0].startswith("layoutdoctor ")
    assert "old.json.gz -> new.json.gz · per step (2 and 2 steps)" in " ".join(lines[:2])
    text = " ".join(" ".join(lines).split())
    assert "Saved: 304 us of layout conversions per step (4 -> 1 conversions, 405 us -> 101 us)" in text
    assert "Fewer: 4 -> 1 to channels_last, activation 4x64x56x56, aten::cudnn_convolution layer1.0 (-304 us)" in text
    assert "Round trips: 1 -> 0, 101 us -> 0 s" in text
    assert "Conversions with nothing else running: 405 us -> 101 us" in text
    assert "Conversions in convolution time: 40 % -> 10 %" in text
    assert "no verdict" in text


def test_conversions_that_came_are_lost_time() -> None:
    assert headline(a_run(), a_run(*conversions(2))) == (
        "Lost: 202 us of layout conversions (0 -> 2 conversions, 0 s -> 202 us)"
    )


def test_a_difference_of_times_alone_is_neither_saved_nor_lost() -> None:
    slower_clock = conversions(2, seconds=120.5e-6)

    assert headline(a_run(*conversions(2)), a_run(*slower_clock)) == (
        "No layout conversion came or went: 2 conversions, 202 us -> 241 us"
    )


def test_another_device_saves_nothing() -> None:
    new = a_run(*conversions(1), environment={"device_name": "NVIDIA B200"})

    assert headline(a_run(*conversions(2)), new) == "Layout conversions: 2 -> 1 conversions, 202 us -> 101 us"


def test_the_same_trace_twice_is_no_difference() -> None:
    assert headline(a_run(*conversions(2)), a_run(*conversions(2))) == (
        "No difference: the two say the same, number by number"
    )


def test_different_runs_are_called_so_in_the_first_line_and_still_reported() -> None:
    other = (a_total("operation", "aten::add"), *(a_total("operation", f"aten::attention_{n}") for n in range(20)))
    text = report(a_run(*conversions(2)), a_run(totals=other))

    assert "\n\nThese two seem to be different runs: 1 of 24 operations in common\n" in text
    assert "Layout conversions: 2 -> 0 conversions" in text
    assert "Saved" not in text
    assert "aten::attention_3" in text


def test_different_runs_of_unequal_work_are_called_both() -> None:
    other = (
        a_total("operation", "aten::cudnn_convolution", count=90),
        *(a_total("operation", f"aten::attention_{n}") for n in range(20)),
    )
    text = " ".join(report(a_run(*conversions(2)), a_run(*conversions(5), totals=other)).split())

    assert "These two seem to be different runs: 1 of 24 operations in common" in text
    assert "Not the same work: for the convolutions that both have (aten::cudnn_convolution) 10 kernels ran" in text


def test_a_share_of_no_time_is_not_spoken_of() -> None:
    untimed = tuple(a_total("operation", name, seconds=0.0) for name in OPERATIONS)
    other = a_total("operation", "aten::mm", seconds=0.0)
    text = report(a_run(*conversions(2), totals=untimed), a_run(*conversions(1), totals=(*untimed, other)))

    assert "In common: 4 of 5 operations\n" in text


def test_nothing_in_common_ends_the_answer() -> None:
    text = report(a_run(*conversions(2)), a_run(totals=(a_total("operation", "aten::mm"),)))

    assert "Nothing in common: no operation, kernel or module of one is in the other" in text
    assert "Layout conversions" not in text


def test_unequal_work_is_said_before_any_number() -> None:
    text = report(a_run(*conversions(3), totals=totals(count=30)), a_run(*conversions(5), totals=totals(count=50)))

    assert text.split("\n\n")[1].startswith("These two seem not to have done the same work: for the convolutions")
    assert "Saved" not in text
    assert "Lost" not in text
    assert "Regression: not judged" in text


@pytest.mark.parametrize(
    ("old", "new", "which"), [(0, 5, "the old one"), (5, 0, "the new one"), (0, 0, "either of the")]
)
def test_a_trace_without_kernels_is_never_called_healthy(old: int, new: int, which: str) -> None:
    runs = [a_run(count=count, totals=totals() if count else ()) for count in (old, new)]

    assert headline(*runs).startswith(f"Nothing to compare: no kernels in {which}")


def test_no_conversion_in_either_is_said_as_such() -> None:
    old, new = a_run(), a_run(seconds=50e-3)

    assert headline(old, new) == "No layout conversion in either of the two"


def test_times_that_were_not_recorded_are_called_so() -> None:
    old = a_run(*conversions(2, seconds=None, exposed_seconds=None), conversion_seconds=None)

    assert headline(old, a_run()) == "Layout conversions: 2 -> 0 conversions, not recorded -> 0 s"


def test_long_lists_are_cut_and_say_by_how_much() -> None:
    many = tuple(a_total("kernel", f"kernel_{n}_{'x' * 200}", seconds=n * 1e-6) for n in range(1, 31))
    text = report(a_run(totals=totals(*many)), a_run())

    assert "and 20 more: --output report.json lists them" in text
    assert "kernel_30_xxx" in text
    assert "kernel_3_xxx" not in text


def test_a_loose_match_is_marked() -> None:
    old = a_run(totals=totals(a_total("kernel", "triton_poi_fused_1", seconds=1e-3)))
    new = a_run(totals=totals(a_total("kernel", "triton_poi_fused_2", seconds=2e-3)))

    assert "triton_poi_fused (loosely)" in report(old, new)
    assert "Kernels matched loosely" in report(old, new)


def test_a_regression_is_named_with_its_numbers() -> None:
    text = " ".join(report(a_run(*conversions(2)), a_run(*conversions(9), pairs=1)).split())

    assert "Regression: layout conversions take 911 us instead of 202 us and 1 round trip instead of 0" in text


def test_models_have_a_row_for_every_configuration_and_one_round_gives_no_verdict() -> None:
    text = render_comparison(models())

    assert re.search(r"^inductor +10\.0 ms +8\.00 ms +1\.25x +not judged +4 -> 1 +0$", text, re.MULTILINE)
    assert re.search(r"^eager +in the old one only$", text, re.MULTILINE)
    assert re.search(r"^inductor-layout-opt-on +failed in the old one$", text, re.MULTILINE)
    assert "faster" not in text
    assert "slower" not in text
    flat = " ".join(text.split())
    assert "Cannot be judged: the time of inductor was not judged: too few rounds (1 in the shorter run)" in flat
    assert "inductor: fewer: 4 -> 1 to channels_last, activation 4x64x56x56" in flat
    assert "Recommended: inductor -> eager" in flat
    assert "Decided otherwise: inductor graph 0: on (cpu-onednn, 1 of 1 convs channels-last) -> off" in flat
    assert "Gone: warning LD101 round-trip-conversion [inductor]" in flat
    assert "Failure gone: inductor-layout-opt-on failed in the old one" in flat
    assert "Only in the old one: eager" in flat


def test_models_that_cannot_be_judged_say_why_in_the_first_line() -> None:
    old = a_diagnosis(a_trial(measurement=a_measurement(10e-3)))
    new = a_diagnosis(a_trial(measurement=a_measurement(11e-3)))

    assert "\n\nCannot be judged: no time was judged: too few rounds" in render_comparison(compare_models(old, new))


def test_models_that_differ_are_called_so() -> None:
    text = render_comparison(compare_models(a_diagnosis(), a_diagnosis(subject=a_subject(parameter_count=1))))

    assert "Cannot be judged: not comparable: the models differ: 112832 parameters in the old one, 1 in the" in text


def test_models_with_nothing_in_common_end_the_answer() -> None:
    text = render_comparison(compare_models(a_diagnosis(a_trial("eager")), a_diagnosis(a_trial("inductor"))))

    assert "\n\nCannot be judged: nothing in common, no configuration has a result in both\n" in text


@pytest.mark.parametrize("comparison", [saving(), models()], ids=["traces", "models"])
def test_all_formats_say_the_same(comparison: Any) -> None:
    text, markdown = render_comparison(comparison), render_comparison(comparison, "markdown")
    first = " ".join(text.split("\n\n")[1].splitlines()[0].split())

    assert first.split(" -> ")[0] in markdown
    assert markdown.startswith("## layoutdoctor ")
    assert json.loads(render_comparison(comparison, "json"))["kind"] == comparison.kind
    assert str(comparison) == text


@for_each("comparison", [saving(), models()])
@for_each("width", [1, 60, 100, 140])
def test_no_line_ends_in_a_space_or_is_too_wide(comparison: Any, width: int) -> None:
    lines = render_comparison(comparison, "text", width).splitlines()

    assert not [line for line in lines if line != line.rstrip()]
    assert width < 100 or not [line for line in lines if len(line) > width]


def hostile_comparisons() -> list[Any]:
    found = tuple(a_conversion(f"c{n}", op=HOSTILE, module=HOSTILE, kernel=HOSTILE, tensor="weight") for n in range(2))
    bad = tuple(a_total(kind, HOSTILE) for kind in ("operation", "kernel", "module"))
    pair = a_pair("c0", "c1", module=HOSTILE, between=(HOSTILE,))
    summary = recorded(*found, totals=bad, lacks=(HOSTILE,))
    old = a_trace(summary, redundant_pairs=(pair,), subject={"name": HOSTILE}, environment={"torch": HOSTILE})
    finding = Finding(
        code=HOSTILE, rule=HOSTILE, severity="note", configuration=HOSTILE, message=HOSTILE, module=HOSTILE
    )
    decision = a_graph(a_decision(rule=HOSTILE), name=HOSTILE)
    trial = a_trial(HOSTILE, kernels=kernels(*found), graphs=(decision,), redundant_pairs=(pair,))
    changed = a_trial(HOSTILE, graphs=(a_graph(a_decision(rule="other"), name=HOSTILE),))
    first = a_diagnosis(trial, findings=(finding,), interrupted=HOSTILE, subject=a_subject(name=HOSTILE))
    return [compare_traces(old, a_run()), compare_traces(a_run(), old), compare_models(first, a_diagnosis(changed))]


@pytest.mark.parametrize("comparison", hostile_comparisons(), ids=["old trace", "new trace", "model"])
def test_a_name_from_outside_cannot_act(comparison: Any) -> None:
    text, markdown = render_comparison(comparison), render_comparison(comparison, "markdown")

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
    comparison = compare_traces(a_run(*many, totals=totals(*names)), a_run())
    markdown = render_comparison(comparison, "markdown")

    assert len(markdown) < MOST_CHARACTERS
    assert "more left out here; the JSON report has them." in markdown


def test_another_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="cannot render a comparison as 'html': expected one of json, markdown, text"):
        render_comparison(saving(), "html")


def test_what_says_who_ran_it_and_where_is_left_out() -> None:
    finding = Finding(
        code="LD501",
        rule="user-contiguous-call",
        severity="warning",
        configuration="inductor",
        message="a copy in /home/alice/secret/model.py",
        location=SourceLocation(file="/home/alice/secret/model.py", line=3),
    )
    failed = a_failed_trial("eager", "RuntimeError: no file /home/alice/secret/weights.pt")
    old = a_diagnosis(a_trial(), a_trial("eager"))
    comparison = compare_models(old, a_diagnosis(a_trial(), failed, findings=(finding,)))

    for report_format in COMPARISON_FORMATS:
        report = render_comparison(comparison, report_format)
        assert "alice" not in report
        assert "model.py" in report


@pytest.mark.thorough
def test_a_comparison_of_models_fits_into_an_issue_however_long_the_record() -> None:
    many = tuple(
        Finding(
            code=f"LD{100 + n % 400}",
            rule="x" * 90,
            severity="note",
            configuration="inductor",
            message="y" * 900,
            module=f"{'deep.' * 18}{n}",
        )
        for n in range(3000)
    )
    found = tuple(a_conversion(f"c{n}", module=f"{'deep.' * 18}{n}") for n in range(2000))
    trials = tuple(a_trial(f"{'long' * 20}{n}", kernels=kernels(*found)) for n in range(12))
    plain = tuple(a_trial(trial.name) for trial in trials)
    markdown = render_comparison(compare_models(a_diagnosis(*plain), a_diagnosis(*trials, findings=many)), "markdown")

    assert len(markdown) < MOST_CHARACTERS
    assert "more left out here; the JSON report has them." in markdown


def test_a_table_that_is_too_wide_stands_row_by_row() -> None:
    text = render_comparison(models(), "text", 60)

    assert re.search(r"^inductor\n  old 10\.0 ms · new 8\.00 ms · old / new 1\.25x", text, re.MULTILINE)
    assert re.search(r"^inductor-layout-opt-on: failed in the old one$", text, re.MULTILINE)
    assert not [line for line in text.splitlines() if len(line) > 60]
