"""
One diagnosis for each shape of story that a report has to tell: the ``.json`` that stands beside its reports.

For a further one save a diagnosis there, such as one made with ``builders``, say below what it tells, and run
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

from layoutdoctor.diagnosis.records import Account, AccountRow, Diagnosis, Failure, Finding, Trial
from layoutdoctor.diagnosis.saved import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = Path(__file__).parent
SAVED = {
    "crashed_and_timed_out": "One configuration killed its process, another never ended; one of the rest is faster.",
    "cured": "The best configuration with a cure that helps, and one that does not.",
    "empty": "Stopped before the first configuration: nothing was run at all.",
    "failures_and_same": "Some failed, one was skipped, two are the same as others, one was dropped early.",
    "gain_with_findings": "A verified gain from channels-last, as in the sketch of the first screen.",
    "interrupted": "Stopped from the keyboard after two of three configurations.",
    "little_recorded": 'Times, but hardly anything about kernels or decisions: never "healthy".',
    "many_findings": "A deep network with hundreds of findings of every severity.",
    "no_convolution": "A model to which layouts do not matter.",
    "no_gain": "Nothing beats the default, although conversions cost a tenth.",
    "noisy": "The machine was busy: wide intervals, one without any coverage.",
    "nothing_measured": "Every configuration failed.",
    "reproducible_round_trips": "Conversions around every batch norm; every call can be written.",
    "round_trip_by_hand": "One finding: the model itself converts there and back, as its graph proves.",
    "single_trial": "Only one configuration was asked for.",
    "small_share": "One convolution that takes next to nothing; a note was found.",
    "static_target": "Lowered for a GPU that is not there: decisions, conversions and bytes, no time.",
    "tie": "The default and another configuration are equally fast.",
    "trace_of_a_gpu_alone": "Kernels without operations; some convert, in a direction that no name says.",
    "trace_of_a_graph_replay": "Kernels without operations: only their names are known, and none converts.",
    "trace_of_kernel_totals": "A table: one entry stands for thousands of launches, without order or shapes.",
    "trace_of_onednn": "A log of oneDNN: reorders of activations and of weights, one of them a cast only.",
    "trace_of_owners": "Conversions by everybody, at more places than a table holds; a file cut short.",
    "trace_with_round_trips": "Two steps on two streams: what overlaps with communication costs less.",
    "trace_without_conversions": "Everything was recorded and no conversion ran: a control.",
    "trace_without_kernels": "Recorded on a CPU: no device kernel, so nothing can be concluded.",
    "training": "Forward and backward, decided apart; the backward graph counts no forward convolution.",
    "unfinished_comparison": "Stopped before anything was recommended; cut by a graph break, compiled again.",
    "wasted_in_the_default": "The default itself runs round trips, and the gain could not be verified.",
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
        recommendation=a_recommendation(how=HOSTILE, reason=HOSTILE),
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


STORIES: Mapping[str, Callable[[], Diagnosis]] = {
    "hostile_names": hostile_names,
    **{story: partial(saved, story) for story in SAVED},
}
TRACE_STORIES = {story: told for story, told in STORIES.items() if story.startswith("trace_")}
