from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.rules.decisions import LD206, leaves_out_backward

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Decision, Finding, Trial

BACKWARD = tuple(f"convolution_backward_{i}" for i in range(4))
UNCOUNTED = a_decision(
    *(a_convolution(name, channels_last=False, is_backward=True) for name in BACKWARD),
    applied=False,
    rule="only-backward-convolutions",
    explanation="the graph has only backward convolutions",
)
VETO = a_decision(applied=False, rule="grouped-convolution", explanation="a grouped convolution vetoes it")


laid_out_anew = partial(
    a_conversion,
    owner="compiler",
    kernel="cpp_fused_3",
    graph="graph 1",
    source=channels_last(),
    target=contiguous(),
    direction="to_contiguous",
    tensor="gradient",
    seconds=None,
    bytes_moved=1_048_576,
    required_by=(BACKWARD[0],),
    role="interior",
)


def a_step(
    *conversions: Conversion,
    library: tuple[Conversion, ...] = (),
    forward: Decision | None = None,
    backward: Decision = UNCOUNTED,
    name: str = "inductor",
    **changes: Any,
) -> Trial:
    graphs = (
        a_graph(forward or a_decision(), direction="forward"),
        a_graph(backward, name="graph 1", direction="backward", conversions=conversions),
    )
    return a_trial(name, graphs=graphs, **{"kernels": kernels(*library), **changes})


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    return list(LD206.check(a_diagnosis(*trials, **{"subject": a_subject(mode="training"), **changes})))


def test_which_facts_it_gives() -> None:
    # A conversion of the library in another graph is not counted.
    reorder = laid_out_anew("reorder 0", owner="library", graph="graph 0")
    assert [f.evidence for f in findings(a_step(library=(reorder,)))] == [("graph 1",)]

    # It is told once.
    on = a_step(laid_out_anew("buf1"), name="inductor-layout-opt-on")
    assert [f.configuration for f in findings(on, a_step(laid_out_anew("buf1")))] == ["inductor"]

    # What cannot be felt is a note.
    slight = laid_out_anew("buf1", seconds=1e-5)
    assert [f.severity for f in findings(a_step(slight))] == ["note"]


def test_what_is_no_finding() -> None:
    # It is silent where channels last input left nothing to lay out.
    given = a_subject(mode="training", inputs=(an_input(channels_last((4, 3, 56, 56))),))
    assert findings(a_step(name="inductor-channels-last")) == []
    assert findings(a_step(), subject=given) == []

    # A backward that follows a vetoed forward is no mismatch.
    assert findings(a_step(laid_out_anew("buf1"), forward=VETO)) == []

    # Both halves with layout optimization are no mismatch.
    assert findings(a_step(laid_out_anew("buf1"), backward=a_decision())) == []

    # A forward whose decision was not recorded is compared with nothing.
    assert findings(a_step(laid_out_anew("buf1"), forward=a_decision(applied=None))) == []

    # A configuration with layout optimization off is excused.
    off = a_configuration("other", layout_optimization="off")
    assert findings(a_step(laid_out_anew("buf1"), configuration=off)) == []


def test_what_it_says(told: Told) -> None:
    comparison = a_comparison(a_ratio("inductor-channels-last", 1.2))
    told(
        "A measured gain of channels last makes it a warning and follows the advice",
        findings(a_step(), comparison=comparison),
    )
    fused = laid_out_anew("buf1", fused=True)
    reorder = laid_out_anew("reorder 7", owner="library", seconds=1.5e-3, location=a_location(12), module="dw")
    told(
        "A backward without layout optimization is told with what is laid out anew for it",
        findings(a_step(fused, laid_out_anew("buf2"), library=(reorder,))),
    )
    told(
        "A forward off and a backward on are a mismatch too",
        findings(a_step(forward=VETO, backward=a_decision(rule="no-veto"))),
    )
    told("A backward that another rule vetoed says which", findings(a_step(backward=VETO)))

    trial = a_step(laid_out_anew("buf1"), is_static=True, kernels=None, measurement=None, equivalence=None)
    told("A graph lowered for a device that is not there is told with bytes only", findings(trial))
    for changes in (
        {"tensor": "weight"},
        {"tensor": "unknown", "owner": "library"},
        {"role": "exit"},
        {"direction": "none"},
        {"owner": "library", "port": "output 1"},
        {"required_by": ("mm_3",)},
    ):
        told(
            "What is not laid out for a backward convolution is not counted",
            findings(a_step(laid_out_anew("buf1", **changes))),
        )


def test_what_channels_last_input_leaves_as_it_is_is_not_counted() -> None:
    # Gradients of the weights of transposed convolutions, which no configuration does without.
    kept = laid_out_anew("reorder 7", owner="library", port="output 0")
    last = a_step(library=(kept,), name="inductor-channels-last")

    assert [f.evidence for f in findings(a_step(library=(kept,)))] == [("reorder 7",)]
    assert [f.evidence for f in findings(a_step(library=(kept,)), last)] == [("graph 1",)]


def test_a_backward_that_was_not_counted_behind_a_forward_with_layout_optimization_is_left_out() -> None:
    assert leaves_out_backward(a_step().graphs)
    for other in (a_step(forward=VETO), a_step(backward=VETO), a_step(backward=a_decision()), a_trial()):
        assert not leaves_out_backward(other.graphs)


def test_it_suggests_nothing_that_was_measured_as_no_faster_or_that_failed() -> None:
    last, off, forced = "inductor-channels-last", "inductor-layout-opt-off", "inductor-layout-opt-forced"
    step = a_step(laid_out_anew("buf1"))

    def suggestion(*trials: Trial, **changes: Any) -> str:
        (finding,) = findings(step, *trials, **changes)
        return str(finding.suggestion)

    slower = suggestion(a_trial(off), a_failed_trial(forced), comparison=a_comparison(a_ratio(off, 0.9)))
    assert "channels_last" in slower
    assert "layout_optimization" not in slower
    failed = suggestion(a_failed_trial(last), comparison=a_comparison())
    assert "channels_last" not in failed
    assert "layout_optimization" in failed
    failing = a_failed_trial(last), a_failed_trial(forced)
    neither = suggestion(a_trial(off), *failing, comparison=a_comparison(a_ratio(off, 0.9)))
    assert neither.startswith(
        "no configuration that was tried is faster: compiled, layout optimization off runs at 0.90x"
    )
    both = suggestion(a_trial(off), a_trial(last), comparison=a_comparison(a_ratio(off, 1.1), a_ratio(last, 1.3)))
    assert "layout_optimization" not in both
    assert "1.30x" in both
    best = suggestion(a_trial(off), a_trial(forced), comparison=a_comparison(a_ratio(off, 1.1), a_ratio(forced, 1.3)))
    assert "force_layout_optimization" in best
    assert "1.30x" in best
