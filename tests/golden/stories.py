"""
One diagnosis for each situation that a report has words for: the ``.json`` that stands beside its reports.

For a further one save a diagnosis there, such as one made with ``builders``, say below what it shows, and run
``pytest --update-golden``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_placeholder,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    kernels,
)

from layoutdoctor.diagnosis.records import (
    Account,
    AccountRow,
    Diagnosis,
    Failure,
    Finding,
    Ratio,
    Trial,
)
from layoutdoctor.diagnosis.saved import from_json
from layoutdoctor.examination.ratios import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = Path(__file__).parent
SAVED = {
    "cured": "The best configuration with a cure that helps, and one that does not.",
    "failures_and_same": "One failed, one timed out, one crashed, one was skipped; two are the same as others.",
    "gain_with_findings": "A verified gain from channels-last, as in the sketch of the first screen.",
    "little_recorded": 'Times, but hardly anything about kernels or decisions: never "healthy".',
    "no_convolution": "A model to which layouts do not matter.",
    "no_gain": "Nothing beats the default, although conversions cost a tenth.",
    "noisy": "The machine was busy: wide intervals, nothing certain.",
    "nothing_measured": "Every configuration failed.",
    "reproducible_round_trips": "Conversions around every batch norm; every call can be written.",
    "round_trip_by_hand": "One finding: the model itself converts there and back, as its graph proves.",
    "small_share": "One convolution that takes next to nothing; a note was found.",
    "static_target": "Lowered for a GPU that is not there: decisions, conversions and bytes, no time.",
    "tie": "The default and another configuration are equally fast.",
    "trace_of_kernel_totals": "A table: one entry stands for thousands of launches, without order or shapes.",
    "trace_of_onednn": "A log of oneDNN: reorders of activations and of weights, one of them a cast only.",
    "trace_of_owners": "Conversions by everybody, at more places than a table holds; a file cut short.",
    "trace_with_round_trips": "Two steps on two streams: what overlaps with communication costs less.",
    "trace_without_conversions": "Everything was recorded and no conversion ran: a control.",
    "trace_without_kernels": "Recorded on a CPU: no device kernel, so nothing can be concluded.",
    "training": "Forward and backward, decided apart; the backward graph counts no forward convolution.",
    "unfinished_comparison": "Stopped before anything was recommended; cut by a graph break, compiled again.",
}
HOSTILE = "</script><img src=x onerror=alert(1)> | `x` *b* ]]> -->\x1b[31m\u202e\n# h ${y} {{ z }} \"q\" 'r' \\ & é"
"""Ends a script, a cell, a code span, a CDATA section, a comment; colours, reverses, starts a heading, interpolates."""


def saved(story: str) -> Diagnosis:
    return from_json((FOLDER / f"{story}.json").read_bytes())


def hostile_names() -> Diagnosis:
    """Every name from outside is made to end a script, a table, a code span or a string, and to start something."""
    place = a_location(1, HOSTILE, HOSTILE)
    names = {"location": place, "module": HOSTILE}
    nodes = (
        a_placeholder(f"x {HOSTILE}"),
        a_node(f"conv {HOSTILE}", HOSTILE, (f"x {HOSTILE}",), arguments=HOSTILE, called=HOSTILE, **names),
        a_node(f"relu {HOSTILE}", "aten.relu.default", (f"conv {HOSTILE}",), arguments=f"conv {HOSTILE}", **names),
    )
    fields = {"kernel": HOSTILE, "op": HOSTILE, "cause": HOSTILE, "graph": "graph 0", **names}
    conversions = (
        a_conversion(f"a {HOSTILE}", node=f"conv {HOSTILE}", required_by=(f"relu {HOSTILE}",), **fields),
        a_conversion(f"b {HOSTILE}", node=f"relu {HOSTILE}", **fields),
    )
    decision = a_decision(a_convolution(f"conv {HOSTILE}", **names), rule=HOSTILE, explanation=HOSTILE, log=HOSTILE)
    pair = a_pair(f"a {HOSTILE}", f"b {HOSTILE}", between=(HOSTILE,), proof=HOSTILE, graph="graph 0", **names)
    failed = Trial(
        configuration=a_configuration("inductor-layout-opt-on"),
        status="failed",
        failure=Failure(kind="compile", message=HOSTILE, log=HOSTILE),
    )
    return a_diagnosis(
        a_trial(
            "inductor",
            graphs=(a_graph(decision, nodes=nodes, not_understood=(HOSTILE,), hook_failure=HOSTILE),),
            kernels=kernels(*conversions, kernels=(a_kernel(HOSTILE, op=HOSTILE),), lacks=(HOSTILE,)),
            redundant_pairs=(pair,),
            notes=(HOSTILE,),
            graph_break_reasons=(HOSTILE,),
        ),
        failed,
        subject=a_subject(name=HOSTILE, model=HOSTILE, notes=(HOSTILE,), inputs=(an_input(name=HOSTILE),)),
        environment=an_environment(torch=HOSTILE, settings={HOSTILE: HOSTILE}, command=HOSTILE),
        comparison=a_comparison(),
        recommendation=a_recommendation(how=HOSTILE),
        interrupted=HOSTILE,
        accounts=(
            Account(
                slower=HOSTILE,
                faster=HOSTILE,
                slower_seconds=2.0,
                faster_seconds=1.0,
                rows=(
                    AccountRow(
                        kind="generated_kernel",
                        seconds=1.0,
                        operations=(HOSTILE,),
                        module=HOSTILE,
                        locations=(place,),
                        slower_kernels=(HOSTILE,),
                        faster_kernels=(HOSTILE,),
                        detail=HOSTILE,
                        source=HOSTILE,
                    ),
                ),
            ),
        ),
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="warning",
                configuration="inductor",
                message=HOSTILE,
                suggestion=HOSTILE,
                evidence=(f"a {HOSTILE}", HOSTILE),
                **names,
            ),
        ),
    )


def usual() -> Diagnosis:
    """Three Conv3d layers on a CPU, whose page faults matter."""
    weights = tuple(a_conversion(f"weight {i}", tensor="weight", seconds=20e-6) for i in range(3))
    activations = tuple(a_conversion(f"reorder {i}", seconds=120e-6, location=a_location(38)) for i in range(5))
    pair = a_pair("reorder 0", "reorder 1", seconds=240e-6, location=a_location(38))
    card = a_decision(*(a_convolution(f"conv {i}", rank=3, channels_last=False) for i in range(3)), applied=True)
    frozen = a_configuration("inductor-channels-last-freezing", inductor_options={"freezing": True})
    default = a_trial(
        "inductor",
        graphs=(a_graph(card),),
        kernels=kernels(*activations, *weights, seconds=9.4e-3),
        redundant_pairs=(pair,),
        measurement=a_measurement(*[10.9e-3] * 25, starts=((10.9e-3,) * 9,) * 3, unkept_seconds=(13.5e-3, 13.9e-3)),
    )
    ratios = {
        "eager": (1.03, 1.06, 1.09),
        "eager-channels-last": (1.15, 1.19, 1.24),
        frozen.name: (1.13, 1.17, 1.22),
        "inductor-channels-last": (0.98, 1.15, 1.31),
    }
    others = {name: 10.9e-3 / middle for name, (_, middle, _) in ratios.items()}
    trials = [
        a_trial(
            configuration=frozen if name == frozen.name else a_configuration(name),
            kernels=kernels(*(weights if name != frozen.name else ()), seconds=seconds * 0.9),
            measurement=a_measurement(
                *[seconds] * 25,
                starts=((seconds,) * 9,) * 3,
                unkept_seconds=(14.5e-3, 11.2e-3) if name == "eager-channels-last" else (),
            ),
        )
        for name, seconds in others.items()
    ]
    compared = tuple(
        Ratio(
            name=name,
            low=low,
            median=middle,
            high=high,
            verdict=judge(low, high),
            round_count=25,
            start_ratios=(1.21, 1.18, 1.18) if name in (frozen.name, "eager-channels-last") else (),
        )
        for name, (low, middle, high) in ratios.items()
    )
    by_name = {ratio.name: ratio for ratio in compared}
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None)
    finding = Finding(
        code="LD101",
        rule="round-trip-conversion",
        severity="warning",
        configuration="inductor",
        message="converted and back again, 16.0 MiB moved, 240 us of 10.9 ms",
        suggestion="channels_last removes it: 1.19x faster (1.15 to 1.24)",
        location=a_location(38),
        module="conv_2",
    )
    return a_diagnosis(
        default,
        *trials,
        same,
        subject=a_subject(name="conv3d_stack.py"),
        environment=an_environment(command="conv3d_stack.py"),
        comparison=a_comparison(*compared, fastest=("eager-channels-last", frozen.name), other_cores=0.1),
        findings=(finding,),
        recommendation=a_recommendation(
            "eager-channels-last",
            speedup=by_name["eager-channels-last"],
            how="model = model.to(memory_format=torch.channels_last_3d)\n"
            "x = x.to(memory_format=torch.channels_last_3d)",
            verified=True,
        ),
        stage_seconds={"compile": 21.0, "measure": 13.4},
    )


STORIES: Mapping[str, Callable[[], Diagnosis]] = {
    "hostile_names": hostile_names,
    "usual": usual,
    **{story: partial(saved, story) for story in SAVED},
}
