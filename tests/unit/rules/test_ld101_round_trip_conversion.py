from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_decision,
    a_diagnosis,
    a_graph,
    a_location,
    a_node,
    a_pair,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.rules.round_trips import LD101

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

THERE = a_conversion("reorder 0", source=blocked(), target=contiguous())
BACK = a_conversion("reorder 1", source=contiguous(), target=blocked(), direction="to_blocked")
SLOWER_OFF = a_ratio("inductor-layout-opt-off", 0.94)
FASTER_LAST = a_ratio("inductor-channels-last", 1.28)


def a_trial_with_pairs(name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(THERE, BACK), "redundant_pairs": (a_pair(),), **changes})


def findings(diagnosis: Diagnosis) -> list[Finding]:
    return list(LD101.check(diagnosis))


def test_what_is_no_finding() -> None:
    assert findings(a_diagnosis(a_trial(kernels=kernels(THERE, BACK)))) == []


def test_which_facts_it_gives(told: Told) -> None:
    # A trial that is the same as another is not told again.
    same = a_trial_with_pairs("inductor-layout-opt-on", status="same_as", same_as="inductor")
    assert [f.configuration for f in findings(a_diagnosis(a_trial_with_pairs(), same))] == ["inductor"]

    pairs = (
        a_pair("a0", "a1", seconds=None, bytes_moved=8, between=()),
        a_pair("b0", "b1", seconds=None, bytes_moved=16, between=("aten.relu.default",)),
    )
    told(
        "Without times the kind that moves most stands first",
        findings(a_diagnosis(a_trial_with_pairs(redundant_pairs=pairs))),
    )


def test_how_severe_it_is() -> None:
    # Round trips below two percent together are a note.
    small = a_pair(seconds=2.9e-4)
    assert [f.severity for f in findings(a_diagnosis(a_trial_with_pairs(redundant_pairs=(small,))))] == ["note"]

    # Many small round trips are a loss together.
    small = tuple(a_pair(f"a{i}", f"b{i}", seconds=2e-4, between=(f"aten.op{i}.default",)) for i in range(2))
    assert [f.severity for f in findings(a_diagnosis(a_trial_with_pairs(redundant_pairs=small)))] == ["warning"] * 2

    # An unverified gain is no error.
    diagnosis = a_diagnosis(
        a_trial_with_pairs(),
        a_trial("inductor-channels-last"),
        comparison=a_comparison(FASTER_LAST),
        recommendation=a_recommendation("inductor-channels-last", verified=False),
    )
    assert [f.severity for f in findings(diagnosis)] == ["warning"]

    # A verified configuration with round trips of its own is no cure.
    diagnosis = a_diagnosis(
        a_trial_with_pairs(),
        a_trial_with_pairs("inductor-channels-last"),
        comparison=a_comparison(FASTER_LAST),
        recommendation=a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup()),
    )
    assert [f.severity for f in findings(diagnosis)] == ["warning", "warning"]

    # Every configuration without them was measured, and is slower.
    slower = a_diagnosis(a_trial_with_pairs(), a_trial("inductor-layout-opt-off"), comparison=a_comparison(SLOWER_OFF))
    unmeasured = a_diagnosis(a_trial_with_pairs(), a_trial("inductor-layout-opt-off"), comparison=a_comparison())
    own = a_trial_with_pairs(kernels=kernels(THERE, msgspec.structs.replace(BACK, owner="framework")))
    mixed = a_diagnosis(own, a_trial("inductor-layout-opt-off"), comparison=a_comparison(SLOWER_OFF))
    assert [f.severity for f in findings(slower)] == ["note"]
    assert [f.severity for f in findings(unmeasured)] == ["warning"]
    assert [f.severity for f in findings(mixed)] == ["warning"]


def test_what_it_says(told: Told) -> None:
    told(
        "A round trip is a warning with its layouts what is between its cost and its place",
        findings(a_diagnosis(a_trial_with_pairs())),
    )
    pairs = (
        a_pair("a0", "a1", seconds=1e-3, between=(), kind="adjacent", bytes_moved=8, tensor_shape=None),
        a_pair("b0", "b1", location=a_location(20), module="body.2"),
        a_pair("c0", "c1", seconds=3e-3, location=a_location(30), module="body.3", tensor_shape=(4, 128, 28, 28)),
    )
    told(
        "Pairs of one kind are one finding and the costliest kind stands first",
        findings(a_diagnosis(a_trial_with_pairs(redundant_pairs=pairs))),
    )
    pairs = tuple(a_pair(f"a{i}", f"b{i}", between=(f"aten.op{i}.default",)) for i in range(5))
    eager = a_trial_with_pairs("eager", redundant_pairs=pairs)
    told(
        "In a trial other than the baseline all round trips are one finding after the baselines",
        findings(a_diagnosis(eager, a_trial_with_pairs(), comparison=a_comparison(a_ratio("eager", 0.6)))),
    )
    pair = a_pair(seconds=None, location=None)
    trial = a_trial("recorded", kernels=None, measurement=None, redundant_pairs=(pair,))
    told("Without times it is a note with the bytes", findings(a_diagnosis(trial)))

    # What was not recorded is left out of the message.
    pair = a_pair(seconds=None, bytes_moved=None, tensor_shape=None)
    assert [f.message for f in findings(a_diagnosis(a_trial(redundant_pairs=(pair,))))] == ["1 round trip: around relu"]
    told(
        "Branches that meet in a concatenation are told as such with an estimated cost",
        findings(a_diagnosis(a_concatenation())),
    )

    trial = a_concatenation(between=("aten.relu.default", "aten.cat.default"), seconds_source="measured")
    told("What else stands between is named and a measured cost says so", findings(a_diagnosis(trial)))
    told(
        "One branch alone is an ordinary round trip also where it is fused",
        findings(a_diagnosis(a_concatenation(also=()))),
    )

    trial = a_concatenation(graph="graph 1")
    again = msgspec.structs.replace(AGAIN, node=None, graph=None)
    other = msgspec.structs.replace(trial, graphs=(a_graph(conversions=(*BRANCHES, again)),))
    told("A reader that is no convolution is not called one", findings(a_diagnosis(other)))


def test_what_it_suggests(told: Told) -> None:
    diagnosis = a_diagnosis(
        a_trial_with_pairs(),
        a_trial("inductor-channels-last"),
        comparison=a_comparison(FASTER_LAST),
        recommendation=a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup()),
    )
    told("The baseline is an error where a verified configuration has no round trip", findings(diagnosis))

    diagnosis = a_diagnosis(
        a_trial(), a_trial_with_pairs("inductor-layout-opt-off"), comparison=a_comparison(SLOWER_OFF)
    )
    told("A configuration slower than the baseline is pointed to the baseline", findings(diagnosis))

    diagnosis = a_diagnosis(
        a_trial(kernels=None),
        a_trial_with_pairs("inductor-layout-opt-off"),
        a_trial("inductor-channels-last"),
        comparison=a_comparison(SLOWER_OFF, FASTER_LAST),
    )
    told("Of two others both speeds are told", findings(diagnosis))

    pair = a_pair(location=a_location(code="x = self.norm(x.contiguous())"))
    told(
        "A call of contiguous between the layers is named as the thing to remove",
        findings(a_diagnosis(a_trial_with_pairs(redundant_pairs=(pair,)))),
    )

    trial = a_trial_with_pairs("inductor-channels-last-opt-off")
    told("A channels last model with the optimization off is told to leave it on", findings(a_diagnosis(trial)))

    vetoed = a_graph(a_decision(applied=False, rule="grouped-convolution"))
    trial = a_trial_with_pairs("inductor-channels-last", graphs=(vetoed,), redundant_pairs=(a_pair(graph=vetoed.name),))
    told("A channels last model that inductor vetoed is told how to force it", findings(a_diagnosis(trial)))

    there = a_conversion("reorder 0", source=contiguous(), target=channels_last(), direction="to_channels_last")
    back = a_conversion("reorder 1", source=channels_last(), target=contiguous(), direction="to_contiguous")
    mixed = (THERE, BACK, msgspec.structs.replace(there, id="reorder 2"), msgspec.structs.replace(back, id="reorder 3"))
    pairs = (a_pair(), a_pair("reorder 2", "reorder 3"))
    told(
        "Where the library computes contiguous channels last is to be left away",
        findings(a_diagnosis(a_trial_with_pairs(kernels=kernels(there, back)))),
        findings(a_diagnosis(a_trial_with_pairs(kernels=kernels(*mixed), redundant_pairs=pairs))),
    )


BRANCHES = tuple(
    a_conversion(
        f"branch {i}",
        owner="compiler",
        graph="graph 0",
        source=channels_last((2, 32, 48, 48)),
        target=contiguous((2, 32, 48, 48)),
        direction="to_contiguous",
        seconds=None,
        fused=True,
    )
    for i in range(4)
)
AGAIN = a_conversion(
    "again",
    owner="compiler",
    graph="graph 0",
    node="convolution_5",
    source=contiguous((2, 128, 48, 48)),
    target=channels_last((2, 128, 48, 48)),
    direction="to_channels_last",
    seconds=1e-3,
)


def a_concatenation(**changes: Any) -> Trial:
    pair = a_pair(
        "branch 0",
        "again",
        **{
            "evidence": "graph",
            "between": ("aten.cat.default",),
            "also": ("branch 1", "branch 2", "branch 3"),
            "tensor_shape": (2, 128, 48, 48),
            "seconds": 1.2e-3,
            "seconds_source": "estimated",
            "bytes_moved": 4_718_592,
            "graph": "graph 0",
            **changes,
        },
    )
    graph = a_graph(conversions=(*BRANCHES, AGAIN), nodes=(a_node("convolution_5", "aten.convolution.default"),))
    return a_trial(graphs=(graph,), redundant_pairs=(pair,))
