"""Two diagnoses of a model for each situation of a comparison, made by hand from seeded noise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_location,
    a_measurement,
    a_pair,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.answer import Finding
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.examination.choice import compare, with_shown_times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.trial import Trial

MILLISECONDS = {
    "eager": 25.0,
    "eager-channels-last": 16.4,
    "inductor": 15.2,
    "inductor-layout-opt-off": 16.3,
    "inductor-channels-last": 11.9,
}
ROUND_COUNT = 40
Pair = tuple[Diagnosis, Diagnosis]


def reorders(count: int, **changes: Any) -> tuple[Conversion, ...]:
    return tuple(a_conversion(f"reorder {number}", seconds=4.8e-4, **changes) for number in range(count))


def round_trips(count: int) -> tuple[RedundantPair, ...]:
    return tuple(
        a_pair(f"reorder {2 * number}", f"reorder {2 * number + 1}", seconds=9.6e-4, module=f"body.{number + 1}.0")
        for number in range(count)
    )


def a_finding(code: str = "LD101", **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "rule": "round-trip-conversion",
        "severity": "warning",
        "configuration": "inductor-layout-opt-off",
        "message": "3 round trips: blocked aBcd16b -> contiguous -> blocked aBcd16b around relu, 2.88 ms",
        "suggestion": "use inductor, which has no round trip",
        "location": a_location(9),
        "module": "body.1.0",
        "seconds": 2.88e-3,
    }
    return Finding(code=code, **{**fields, **changes})


def a_run(
    seed: int,
    *,
    machine: float = 1.0,
    factors: Mapping[str, float] | None = None,
    code: str = "a",
    trials: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> Diagnosis:
    """One diagnosis: the machine's pace, what a configuration takes more, the code it ran, and what a test is about."""
    generator = random.Random(seed)
    pace = [machine * generator.lognormvariate(0, 0.01) for _ in range(ROUND_COUNT)]
    times = {
        name: [
            seconds * 1e-3 * (factors or {}).get(name, 1.0) * one * generator.lognormvariate(0, 0.01) for one in pace
        ]
        for name, seconds in MILLISECONDS.items()
    }
    made: list[Trial] = []
    for name, round_seconds in times.items():
        is_eager = name.startswith("eager")
        graph = a_graph(
            None if is_eager else a_decision(a_convolution(), a_convolution("convolution_1", module="body.1.0")),
            code_fingerprint=f"{name} {code}",
        )
        own = (trials or {}).get(name, {})
        conversions = reorders(7) if name in ("eager", "inductor-layout-opt-off") else reorders(2, tensor="weight")
        made.append(
            a_trial(
                name,
                **{
                    "measurement": a_measurement(*round_seconds),
                    "graphs": (graph,),
                    "kernels": kernels(*conversions),
                    "redundant_pairs": round_trips(3) if name == "inductor-layout-opt-off" else (),
                    **own,
                },
            )
        )
    comparison = compare(made)
    assert comparison is not None
    fields: dict[str, Any] = {
        "comparison": comparison,
        "findings": (a_finding(),),
        "recommendation": a_recommendation("inductor-channels-last", speedup=a_speedup()),
    }
    shown = with_shown_times(made, "inductor", {ratio.name: ratio for ratio in comparison.ratios})
    return a_diagnosis(*shown, **{**fields, **changes})


def identical() -> Pair:
    """The same diagnosis twice."""
    return a_run(1), a_run(1)


def regression() -> Pair:
    """One configuration became slower and has round trips; its code changed, the others' did not."""
    slower = {
        "graphs": (a_graph(a_decision(a_convolution(channels_last=False)), code_fingerprint="new"),),
        "kernels": kernels(*reorders(4)),
        "redundant_pairs": round_trips(2),
    }
    finding = a_finding(
        "LD501",
        rule="user-contiguous-call",
        severity="error",
        configuration="inductor-channels-last",
        message="x.contiguous() undoes channels-last in front of a convolution that converts back, 1.92 ms",
        location=a_location(14, code="x = x.contiguous()"),
        module="body.2.0",
        seconds=1.92e-3,
    )
    new = a_run(
        2,
        factors={"inductor-channels-last": 1.3},
        trials={"inductor-channels-last": slower},
        findings=(finding, a_finding(location=a_location(12))),
        recommendation=a_recommendation(),
    )
    return a_run(1), new


def improvement() -> Pair:
    """The round trips are gone, and the time with them."""
    better = {"kernels": kernels(*reorders(2, tensor="weight")), "redundant_pairs": ()}
    better["graphs"] = (a_graph(a_decision(), code_fingerprint="new"),)
    new = a_run(2, factors={"inductor-layout-opt-off": 0.8}, trials={"inductor-layout-opt-off": better}, findings=())
    return a_run(1), new


def different_machine() -> Pair:
    """Another processor: times are shown, ratios to the baseline judged."""
    new = a_run(
        2,
        machine=0.4,
        factors={"inductor-channels-last": 1.2},
        environment=an_environment(device_name="AMD EPYC 9554", cpu_count=64, thread_count=64),
    )
    return a_run(1, environment=an_environment(device_name="Intel Xeon 8488C")), new


def different_inputs() -> Pair:
    """Twice the batch."""
    return a_run(1), a_run(2, machine=2.0, subject=a_subject(inputs=(an_input(contiguous((8, 3, 56, 56))),)))


def findings_came_and_went() -> Pair:
    """One rule finds something new, one finds nothing any more, one stays on another line with another severity."""
    old = a_run(1, findings=(a_finding(), a_finding("LD503", rule="flat-conv3d", module="head", seconds=None)))
    came = a_finding("LD502", rule="mixed-formats-in-model", configuration="inductor", module="body.3.0", seconds=4e-4)
    stayed = a_finding(severity="note", location=a_location(40), seconds=1e-4)
    return old, a_run(2, code="b", findings=(came, stayed))


def decision_flipped() -> Pair:
    """A grouped convolution vetoes layout optimization; the code breaks into two graphs."""
    first = a_convolution(channels_last=False)
    vetoed = a_convolution("convolution_1", module="body.1.0", class_="grouped", groups=32, channels_last=False)
    card = a_decision(first, vetoed, applied=False, rule="grouped-convolution", explanation="a grouped convolution")
    changed = {"graphs": (a_graph(card, code_fingerprint="new", graph_breaks=1),), "recompile_count": 2}
    conversion = a_conversion(
        "graph exit", owner="compiler", source=channels_last(), target=contiguous(), direction="to_contiguous"
    )
    changed["kernels"] = kernels(conversion)
    return a_run(1), a_run(2, trials={"inductor": changed})


def failed_in_one() -> Pair:
    """A configuration that worked fails; another one is new."""
    new = a_run(2)
    trials = tuple(
        a_failed_trial(trial.name, "RuntimeError: could not create a primitive")
        if trial.name == "inductor-channels-last"
        else trial
        for trial in new.trials
    )
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None, kernels=None)
    comparison = msgspec.structs.replace(
        new.comparison, ratios=new.comparison.ratios[:3], fastest=("inductor", "inductor-layout-opt-off")
    )
    recommendation = a_recommendation()
    return a_run(1), msgspec.structs.replace(
        new, trials=(*trials, same), comparison=comparison, recommendation=recommendation
    )


def nothing_measured() -> Pair:
    """No configuration has a result in both."""
    return (
        a_diagnosis(a_failed_trial("inductor"), a_trial("eager")),
        a_diagnosis(a_failed_trial("inductor", "RuntimeError: out of memory"), a_failed_trial("eager")),
    )


COMPARISON_STORIES: Mapping[str, Callable[[], Pair]] = {
    story.__name__: story
    for story in (
        identical,
        regression,
        improvement,
        different_machine,
        different_inputs,
        findings_came_and_went,
        decision_flipped,
        failed_in_one,
        nothing_measured,
    )
}
