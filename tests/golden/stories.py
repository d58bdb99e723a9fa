"""
One diagnosis for each shape of story that a report has to tell, made by hand.

Those of traces, those with whole graphs and the extreme ones stand beside this.
"""

from __future__ import annotations

from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_environment,
    channels_last,
    contiguous,
    kernels,
)
from golden.extreme_stories import EXTREME_STORIES
from golden.graph_stories import GRAPH_STORIES
from golden.trace_stories import TRACE_STORIES

from layoutdoctor.diagnosis.records import (
    Conversion,
    Decision,
    Diagnosis,
    Equivalence,
    Failure,
    Finding,
    Graph,
    Measurement,
    RedundantPair,
    Trial,
)

CHANNELS_LAST_HOW = "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"
EQUAL = Equivalence(status="equal", max_abs_error=3e-7, tolerance=1e-4, reference="float64")


def rounds(seconds: float, **changes: object) -> Measurement:
    return a_measurement(*(seconds, seconds * 1.01, seconds * 0.99) * 20, **changes)


def card(count: int = 4, forced: int | None = None, **changes: object) -> Decision:
    made = count if forced is None else forced
    convolutions = tuple(
        a_convolution(f"convolution_{i}", module=f"body.{i}.0", channels_last=i < made) for i in range(count)
    )
    return a_decision(*convolutions, **{"convolution_count": count, "channels_last_convolution_count": made, **changes})


def off_card(rule: str = "config-off", count: int = 4, **changes: object) -> Decision:
    explanation = "layout optimization is switched off" if rule == "config-off" else "a grouped convolution vetoes it"
    return card(count, 0, applied=False, rule=rule, explanation=explanation, **changes)


def weights(count: int = 4, seconds: float = 1e-4) -> tuple[Conversion, ...]:
    return tuple(
        a_conversion(f"weight {i}", tensor="weight", direction="to_blocked", seconds=seconds, bytes_moved=294_912)
        for i in range(count)
    )


def activations(count: int, seconds: float = 4.8e-4) -> tuple[Conversion, ...]:
    return tuple(a_conversion(f"reorder {i}", seconds=seconds) for i in range(count))


def entry_and_exit() -> tuple[Conversion, Conversion]:
    entry = a_conversion(
        "graph entry",
        owner="compiler",
        kernel="cpp_fused_0",
        node="convolution",
        source=contiguous((4, 3, 56, 56)),
        target=channels_last((4, 3, 56, 56)),
        direction="to_channels_last",
        seconds=5e-4,
    )
    leave = a_conversion(
        "graph exit",
        owner="compiler",
        kernel="cpp_fused_3",
        node="relu_3",
        source=channels_last(),
        target=contiguous(),
        direction="to_contiguous",
        seconds=6e-4,
    )
    return entry, leave


def pairs(count: int) -> tuple[RedundantPair, ...]:
    return tuple(
        a_pair(f"reorder {2 * i}", f"reorder {2 * i + 1}", seconds=9.6e-4, module=f"body.{i + 1}.0")
        for i in range(count)
    )


def gain_with_findings() -> Diagnosis:
    """A verified gain from channels-last, as in the sketch of the first screen."""
    entry, leave = entry_and_exit()
    trials = (
        a_trial(
            "eager",
            measurement=rounds(25e-3, compile_seconds=None),
            kernels=kernels(*activations(7), *weights(), seconds=24e-3),
        ),
        a_trial(
            "eager-channels-last",
            measurement=rounds(16.4e-3, compile_seconds=None),
            kernels=kernels(*weights(), seconds=16e-3),
        ),
        a_trial(
            "inductor",
            measurement=rounds(15.2e-3),
            graphs=(a_graph(card(), conversions=(entry, leave)),),
            kernels=kernels(*weights(), seconds=14.9e-3),
        ),
        a_trial(
            "inductor-layout-opt-off",
            measurement=rounds(16.3e-3),
            graphs=(a_graph(off_card()),),
            kernels=kernels(*activations(7), *weights(), seconds=16e-3),
            redundant_pairs=pairs(3),
        ),
        a_trial(
            "inductor-layout-opt-on",
            status="same_as",
            same_as="inductor",
            kernels=None,
            measurement=None,
            equivalence=None,
            graphs=(a_graph(card()),),
        ),
        a_trial(
            "inductor-channels-last",
            measurement=rounds(11.9e-3),
            graphs=(a_graph(card()),),
            kernels=kernels(*weights(), seconds=11.5e-3),
        ),
    )
    return a_diagnosis(
        *trials,
        subject=a_subject(name="small_cnn.py"),
        comparison=a_comparison(
            a_ratio("eager", 0.61, 0.01),
            a_ratio("eager-channels-last", 0.93),
            a_ratio("inductor-layout-opt-off", 0.94),
            a_ratio("inductor-channels-last", 1.28),
            fastest=("inductor-channels-last",),
        ),
        recommendation=a_recommendation(
            "inductor-channels-last",
            speedup=a_speedup(),
            how=CHANNELS_LAST_HOW,
            verified=True,
            reason="measured again after the choice, outputs equal",
        ),
        findings=(
            Finding(
                code="LD205",
                rule="input-format-mismatch",
                severity="warning",
                configuration="inductor",
                message="the input is contiguous, every convolution runs channels-last; the entry and exit conversions "
                "cost 1.10 ms (7.4 %)",
                suggestion="give the model channels_last inputs: 1.28x faster (1.25 to 1.31)",
                location=a_location(14, "small_cnn.py"),
                module="body.0.0",
                seconds=1.1e-3,
                bytes_moved=12_845_056,
            ),
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="inductor-layout-opt-off",
                message="nChw16c -> NCHW -> nChw16c around BatchNorm+ReLU, 3 times, 2.88 ms",
                location=a_location(9, "small_cnn.py"),
                module="body.0",
                seconds=2.88e-3,
            ),
            Finding(
                code="LD103",
                rule="weight-converted-every-call",
                severity="note",
                configuration="inductor",
                message="4 convolution weights are re-laid out on each call, 400 us; freeze, or convert them once",
            ),
        ),
    )


def wasted_in_the_default() -> Diagnosis:
    """The default itself runs round trips, and the gain could not be verified."""
    return a_diagnosis(
        a_trial(
            "inductor",
            measurement=rounds(15e-3),
            graphs=(a_graph(off_card("grouped-convolution", deciding_nodes=("convolution_2",))),),
            kernels=kernels(*activations(6), seconds=14e-3),
            redundant_pairs=pairs(3),
        ),
        a_trial(
            "inductor-channels-last",
            measurement=rounds(12e-3),
            equivalence=Equivalence(status="not_checked", detail="the model is random: two eager runs differ"),
        ),
        comparison=a_comparison(a_ratio("inductor-channels-last", 1.25), fastest=("inductor-channels-last",)),
        recommendation=a_recommendation(
            "inductor-channels-last", how=CHANNELS_LAST_HOW, reason="faster in every round"
        ),
    )


def no_gain() -> Diagnosis:
    """Nothing beats the default, although conversions cost a tenth."""
    return a_diagnosis(
        a_trial("eager", measurement=rounds(20e-3)),
        a_trial("inductor", graphs=(a_graph(card()),), kernels=kernels(*activations(3, 5e-4), seconds=10e-3)),
        a_trial("inductor-layout-opt-off", measurement=rounds(12e-3), graphs=(a_graph(off_card()),)),
        a_trial(
            "inductor-channels-last",
            measurement=rounds(8e-3),
            equivalence=Equivalence(status="different", max_abs_error=0.25, tolerance=1e-4, reference="float64"),
        ),
        comparison=a_comparison(
            a_ratio("eager", 0.5, 0.01),
            a_ratio("inductor-layout-opt-off", 0.83),
            a_ratio("inductor-channels-last", 1.25),
        ),
        recommendation=a_recommendation(reason="inductor-channels-last is faster, but its outputs differ"),
    )


def tie() -> Diagnosis:
    """The default and another configuration are equally fast."""
    return a_diagnosis(
        a_trial("eager", measurement=rounds(13e-3)),
        a_trial("inductor", graphs=(a_graph(card()),), kernels=kernels(*activations(1, 1e-3), seconds=10e-3)),
        a_trial("inductor-channels-last", graphs=(a_graph(card()),)),
        comparison=a_comparison(
            a_ratio("eager", 0.77),
            a_ratio("inductor-channels-last", 1.0),
            fastest=("inductor", "inductor-channels-last"),
        ),
        recommendation=a_recommendation(),
    )


def failures_and_same() -> Diagnosis:
    """Some configurations failed, one was skipped, two are the same as others, one was dropped early."""
    same = {"status": "same_as", "kernels": None, "measurement": None, "equivalence": None}
    return a_diagnosis(
        a_trial("eager", measurement=rounds(30e-3, dropped_after_round=5, stopped_because="dropped")),
        a_trial("eager-channels-last", same_as="eager", **same),
        a_trial("inductor", graphs=(a_graph(card(3, 0)),), kernels=kernels(*activations(2, 1e-3), seconds=10e-3)),
        a_failed_trial("inductor-layout-opt-off", "InductorError: CppCompileError: C++ compile error\nfatal: no g++"),
        a_trial("inductor-layout-opt-on", same_as="inductor", **same),
        Trial(
            configuration=a_configuration("inductor-channels-last"),
            status="timed_out",
            failure=Failure(
                kind="compile", message="still compiling after 300 s", log="torch/_inductor/graph.py\n  wait()"
            ),
        ),
        Trial(
            configuration=a_configuration("inductor-channels-last-opt-off"),
            status="skipped",
            failure=Failure(kind="prepare", message="interrupted before its turn"),
        ),
        comparison=a_comparison(a_ratio("eager", 0.33, 0.01)),
        recommendation=a_recommendation(),
    )


def noisy() -> Diagnosis:
    """The machine was busy: wide intervals, one without any coverage."""
    return a_diagnosis(
        a_trial("eager", measurement=a_measurement(13e-3, 19e-3, 9e-3)),
        a_trial("inductor", graphs=(a_graph(card()),), kernels=kernels(*activations(4, 1e-3), seconds=10e-3)),
        a_trial("inductor-channels-last", graphs=(a_graph(card()),)),
        comparison=a_comparison(
            a_ratio("eager", 0.8, 0.25, coverage=None, round_count=3),
            a_ratio("inductor-channels-last", 1.05, 0.20),
            fastest=("inductor-channels-last", "inductor"),
        ),
        recommendation=a_recommendation(reason="no gain is larger than the noise"),
        findings=(
            Finding(
                code="LD401",
                rule="unstable-measurement",
                severity="warning",
                configuration=None,
                message="rounds scatter by 47 %: close other programs, or raise --budget",
            ),
        ),
    )


def no_convolution() -> Diagnosis:
    """A model to which layouts do not matter."""
    nothing = off_card("no-convolution", 0)
    same = {"status": "same_as", "same_as": "inductor", "kernels": None, "measurement": None, "equivalence": None}
    return a_diagnosis(
        a_trial("eager", measurement=rounds(3e-3), kernels=kernels(seconds=2.8e-3)),
        a_trial("eager-channels-last", measurement=rounds(3e-3), kernels=kernels(seconds=2.8e-3)),
        a_trial("inductor", measurement=rounds(2e-3), kernels=kernels(seconds=1.9e-3), graphs=(a_graph(nothing),)),
        a_trial("inductor-channels-last", graphs=(a_graph(nothing),), **same),
        subject=a_subject(name="mlp.py", convolution_module_count=0),
        comparison=a_comparison(a_ratio("eager", 0.67), a_ratio("eager-channels-last", 0.67)),
        recommendation=a_recommendation(),
    )


def small_share() -> Diagnosis:
    """One convolution that takes next to nothing; a note was found."""
    return a_diagnosis(
        a_trial("eager", measurement=rounds(11e-3)),
        a_trial("inductor", graphs=(a_graph(card(1)),), kernels=kernels(*weights(1, 5e-5), seconds=9.8e-3)),
        comparison=a_comparison(a_ratio("eager", 0.91)),
        recommendation=a_recommendation(),
        findings=(
            Finding(
                code="LD103",
                rule="weight-converted-every-call",
                severity="note",
                configuration="inductor",
                message="1 convolution weight is re-laid out on each call, 50.0 us",
            ),
        ),
    )


def interrupted() -> Diagnosis:
    """Stopped from the keyboard after two of three configurations."""
    return a_diagnosis(
        a_trial("eager", measurement=None, equivalence=EQUAL),
        a_trial("inductor", measurement=None, kernels=None, graphs=(a_graph(card()),)),
        interrupted="interrupted from the keyboard",
    )


def training() -> Diagnosis:
    """Forward and backward, decided apart; the backward graph counts no forward convolution."""
    forward = a_graph(card(), name="graph 0", direction="forward")
    backward = a_graph(off_card("only-backward-convolutions"), name="graph 1", direction="backward")
    gradients = tuple(a_conversion(f"gradient {i}", tensor="gradient", seconds=3e-4) for i in range(5))
    return a_diagnosis(
        a_trial("eager", measurement=rounds(44e-3)),
        a_trial(
            "inductor",
            measurement=rounds(40e-3),
            graphs=(forward, backward),
            kernels=kernels(*activations(2), *gradients, *weights(), seconds=39e-3),
            equivalence=Equivalence(
                status="equal", max_abs_error=2e-6, tolerance=1e-3, reference="float64", gradients_checked=True
            ),
        ),
        a_trial(
            "inductor-layout-opt-forced",
            measurement=rounds(32e-3),
            graphs=(forward, a_graph(card(8), name="graph 1", direction="backward")),
            kernels=kernels(*weights(), seconds=31e-3),
            equivalence=Equivalence(
                status="equal", max_abs_error=2e-6, tolerance=1e-3, reference="float64", gradients_checked=True
            ),
        ),
        subject=a_subject(mode="training"),
        comparison=a_comparison(
            a_ratio("eager", 0.91), a_ratio("inductor-layout-opt-forced", 1.25), fastest=("inductor-layout-opt-forced",)
        ),
        recommendation=a_recommendation(
            "inductor-layout-opt-forced",
            speedup=a_speedup(1.25),
            how='options = {"layout_optimization": True, "force_layout_optimization": True}\n'
            "model = torch.compile(model, options=options)",
            verified=True,
        ),
    )


def single_trial() -> Diagnosis:
    """Only one configuration was asked for."""
    return a_diagnosis(
        a_trial("inductor", graphs=(a_graph(card()),), kernels=kernels(*activations(2), *weights(), seconds=9e-3))
    )


def nothing_measured() -> Diagnosis:
    """Every configuration failed."""
    return a_diagnosis(a_failed_trial("eager"), a_failed_trial("inductor"), a_failed_trial("inductor-layout-opt-on"))


def little_recorded() -> Diagnosis:
    """Times, but hardly anything about kernels or decisions: never "healthy"."""
    lacking = kernels(lacks=("oneDNN's log: it writes to a closed descriptor",), not_understood_count=3)
    return a_diagnosis(
        a_trial("eager", kernels=lacking, measurement=rounds(12e-3)),
        a_trial("inductor", kernels=None, graphs=(a_graph(None, hook_failure="KeyError: 'val'"),)),
        a_trial("inductor-channels-last", kernels=None, graphs=(), notes=("the second compile was not cached",)),
        subject=a_subject(
            device="cuda",
            convolution_module_count=None,
            notes=("was compiled already: the module inside was diagnosed",),
        ),
        environment=an_environment(device_name="NVIDIA H200", torch=None),
        comparison=a_comparison(a_ratio("eager", 0.83), a_ratio("inductor-channels-last", 0.99)),
        recommendation=a_recommendation(),
    )


def unfinished_comparison() -> Diagnosis:
    """Compared, but stopped before anything was recommended; cut by a graph break, compiled again."""
    broken = (
        a_graph(card(2), graph_breaks=2),
        a_graph(off_card("grouped-convolution", 2), name="graph 1", graph_breaks=2),
    )
    return a_diagnosis(
        a_trial("eager", graphs=(Graph(name="eager", direction="inference", decision=None, nodes=(a_node("relu"),)),)),
        a_trial(
            "inductor",
            graphs=broken,
            kernels=kernels(*activations(2), seconds=10e-3),
            recompile_count=1,
            graph_break_reasons=("call to print at model.py:12", "data-dependent branch at model.py:20"),
        ),
        a_trial("inductor-channels-last", measurement=rounds(8e-3)),
        comparison=a_comparison(
            a_ratio("eager", 0.99), a_ratio("inductor-channels-last", 1.25), fastest=("inductor-channels-last",)
        ),
        interrupted="interrupted from the keyboard",
    )


STORIES = {
    story.__name__: story
    for story in (
        failures_and_same,
        gain_with_findings,
        interrupted,
        little_recorded,
        no_convolution,
        no_gain,
        noisy,
        nothing_measured,
        single_trial,
        small_share,
        tie,
        training,
        unfinished_comparison,
        wasted_in_the_default,
    )
}
STORIES |= EXTREME_STORIES | GRAPH_STORIES | TRACE_STORIES
