"""The report of a diagnosis for a GPU that is not there: it names the target, and nothing in it sounds measured."""

from __future__ import annotations

from builders import (
    a_conversion,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_pair,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
)

from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Failure, Trial
from layoutdoctor.reports import render
from layoutdoctor.reports.sections.answer import build_answer
from layoutdoctor.reports.sections.rows import build_tables
from layoutdoctor.reports.sections.view import build_measurement, build_not_understood, build_view

VETOED = a_decision(applied=False, rule="small-channels", explanation="all convolutions are small")
APPLIED = a_decision(rule="weighted-flops", explanation="the weighted flops predict no slowdown")


def moved(number: int, *, fused: bool = False) -> Conversion:
    return a_conversion(
        f"graph 0 conversion {number}",
        owner="compiler",
        source=contiguous(),
        target=channels_last(),
        direction="to_channels_last",
        seconds=None,
        bytes_moved=1024,
        fused=fused,
    )


def lowered(name: str = "inductor", *conversions: Conversion, **changes: object) -> Trial:
    graph = a_graph(APPLIED, conversions=conversions)
    return a_trial(
        name,
        **{"kernels": None, "measurement": None, "equivalence": None, "is_static": True, "graphs": (graph,)} | changes,
    )


def skipped(name: str = "eager") -> Trial:
    failure = Failure(kind="target", message="eager runs no compiler: nothing to lower for a GPU that is not there")
    return a_trial(
        name, status="skipped", failure=failure, kernels=None, measurement=None, equivalence=None, is_static=True
    )


def static(*trials: Trial) -> Diagnosis:
    return a_diagnosis(*trials, subject=a_subject(device="cuda", target="cuda:90"))


def test_the_title_says_static_and_the_target() -> None:
    assert build_view(static(lowered())).title == (
        "layoutdoctor 0.1.0",
        "model.py",
        "inference",
        "static, cuda:90",
        "torch 2.13.0",
    )


def test_the_answer_has_the_decision_and_what_the_graphs_prove() -> None:
    pair = a_pair("graph 0 conversion 0", "graph 0 conversion 1", evidence="graph", seconds=None)
    trial = lowered("inductor", moved(0), moved(1), moved(2, fused=True), redundant_pairs=(pair,))

    answer = build_answer(static(skipped(), trial, lowered("inductor-layout-opt-off")))

    assert answer.headline == (
        "Nothing was run on cuda:90: 2 graphs of 2 configurations lowered for it without the device, "
        "so no time is known"
    )
    assert answer.lines == (
        "Layout optimization under torch.compile's default: on, 1 of 1 convs channels-last",
        "Inference: on (weighted-flops), as the weighted flops predict no slowdown",
        "Conversions that the graphs of torch.compile's default prove: 2 activation, 2.00 KiB to move in each "
        "iteration; 1 more fused into kernels that compute as well",
        "Redundant pairs that the graphs of torch.compile's default prove: 1, 2.00 KiB to move in each iteration",
    )


def test_a_pair_elsewhere_and_a_failure_are_told_too() -> None:
    pair = a_pair("graph 0 conversion 0", "graph 0 conversion 1", evidence="graph", seconds=None)
    other = lowered("inductor-layout-opt-off", moved(0), moved(1), redundant_pairs=(pair,))

    answer = build_answer(static(lowered(), other, a_failed_trial("inductor-channels-last", "cannot lower it")))

    assert answer.lines[2:] == (
        "Conversions that the graphs of torch.compile's default prove: none of their own",
        "Redundant pairs that the graphs of torch.compile's default prove: none",
        "Redundant pairs that the graphs of inductor-layout-opt-off prove: 1, 2.00 KiB to move in each iteration",
        "No result: inductor-channels-last failed (compile): cannot lower it",
    )


def test_bytes_that_are_not_all_known_are_a_lower_bound() -> None:
    unknown = a_conversion("graph 0 conversion 1", owner="compiler", seconds=None, bytes_moved=None)

    answer = build_answer(static(lowered("inductor", moved(0), unknown)))

    assert answer.lines[2].endswith("prove: 2 activation, at least 1.00 KiB to move in each iteration")


def test_bytes_of_which_none_are_known_are_not_spoken_of() -> None:
    unknown = a_conversion("graph 0 conversion 0", owner="compiler", seconds=None, bytes_moved=None)

    assert build_answer(static(lowered("inductor", unknown))).lines[2] == (
        "Conversions that the graphs of torch.compile's default prove: 1 activation"
    )


def test_where_nothing_was_lowered_nothing_is_concluded() -> None:
    diagnosis = static(skipped(), a_failed_trial("inductor", "cannot lower it"))

    answer = build_answer(diagnosis)

    assert answer.headline == "Nothing could be concluded: no graph was lowered for cuda:90"
    assert answer.lines == ("No result: inductor failed (compile): cannot lower it",)
    assert build_not_understood(diagnosis) == ("nothing was lowered, so nothing was recorded",)


def test_many_reasons_are_cut() -> None:
    graphs = tuple(a_graph(a_decision(explanation=f"reason {number}"), name=f"graph {number}") for number in range(6))

    lines = build_answer(static(lowered(graphs=graphs))).lines

    assert lines[1:6] == (*(f"Inference: on (cpu-onednn), as reason {n}" for n in range(4)),
                          "and 2 more: --output report.md has them")  # fmt: skip


def test_the_table_has_decisions_and_conversions_and_no_times() -> None:
    diagnosis = static(skipped(), lowered("inductor", moved(0)), lowered("inductor-layout-opt-off"))

    (table,) = build_tables(diagnosis)

    assert table.head == ("configuration", "conversions", "decision")
    assert [row.cells for row in table.rows] == [
        ("inductor", "1 activation (1.00 KiB)", "on, 1 of 1 convs channels-last"),
        ("inductor-layout-opt-off", "none", "on, 1 of 1 convs channels-last"),
        ("eager",),
    ]
    assert build_measurement(diagnosis) == ("none, as the graphs were only lowered for cuda:90",)
    assert build_not_understood(diagnosis) == ("nothing",)


def test_no_format_speaks_of_times() -> None:
    training = (a_graph(APPLIED, direction="forward"), a_graph(VETOED, name="graph 1", direction="backward"))
    diagnosis = static(skipped(), lowered(graphs=training), lowered("inductor-layout-opt-off", moved(0)))

    markdown = render(diagnosis, "markdown").split("<!-- layoutdoctor:v1 -->")[0]  # its keys are the same for all
    for report in (render(diagnosis, "text"), markdown):
        assert "static, cuda:90" in report.splitlines()[0]
        for word in ("median", "vs default", "measured:", "fastest", "faster", "not measured", "rounds"):
            assert word not in report
        assert "Backward: off (small-channels), as all convolutions are small" in report.replace("\n  ", " ")
