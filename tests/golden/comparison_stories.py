"""Two diagnoses of a model for each situation of a comparison, made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_finding,
    a_graph,
    a_location,
    a_measurement,
    a_pair,
    a_recommendation,
    a_speedup,
    a_trial,
    an_environment,
    kernels,
)

from layoutdoctor.examination.advice.choice import compare_trials, shown_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

MILLISECONDS = {
    "eager": 25.0,
    "eager-channels-last": 16.4,
    "inductor": 15.2,
    "inductor-layout-opt-off": 16.3,
    "inductor-channels-last": 11.9,
}
NOISE = tuple(1 + 0.01 * (7 * number % 5 - 2) for number in range(40))


def reorders(count: int, **changes: Any) -> tuple[Conversion, ...]:
    return tuple(a_conversion(f"reorder {number}", seconds=4.8e-4, **changes) for number in range(count))


def pairs(count: int) -> dict[str, object]:
    """The kernels and round trips of a trial with so many of these."""
    found = (
        a_pair(f"reorder {2 * n}", f"reorder {2 * n + 1}", seconds=9.6e-4, module=f"body.{n}") for n in range(count)
    )
    return {"kernels": kernels(*reorders(2 * count)), "redundant_pairs": tuple(found)}


def a_run(
    shift: int,
    factors: Mapping[str, float] | None = None,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> Diagnosis:
    """One diagnosis: where its noise begins, by how much a configuration is slower, and the changed trials."""
    made = []
    for number, (name, milliseconds) in enumerate(MILLISECONDS.items()):
        start = (shift + number) % len(NOISE)
        seconds = milliseconds * 1e-3 * (factors or {}).get(name, 1.0)
        fields: dict[str, Any] = {
            "measurement": a_measurement(*(seconds * one for one in NOISE[start:] + NOISE[:start])),
            "graphs": (a_graph(None if name.startswith("eager") else a_decision(), code_fingerprint=f"{name} a"),),
            "kernels": kernels(*reorders(2, tensor="weight")),
            **(pairs(3) if name == "inductor-layout-opt-off" else {}),
            **(trials or {}).get(name, {}),
        }
        made.append(a_trial(name, **fields))
    comparison = compare_trials(made)
    assert comparison is not None
    seconds = shown_seconds(made, comparison)
    shown = [with_time(trial, seconds[trial.name]) for trial in made]
    advice = a_recommendation("inductor-channels-last", speedup=a_speedup())
    found = (a_finding(configuration="inductor-layout-opt-off", seconds=2.88e-3),)
    return a_diagnosis(*shown, **{"comparison": comparison, "findings": found, "recommendation": advice, **changes})


def with_time(trial: Trial, seconds: float) -> Trial:
    assert trial.measurement is not None
    return msgspec.structs.replace(
        trial, measurement=msgspec.structs.replace(trial.measurement, median_seconds=seconds)
    )


OLD = a_run(0)
SLOWER = {"graphs": (a_graph(a_decision(a_convolution(channels_last=False)), code_fingerprint="new"),), **pairs(2)}
COPY = a_finding("LD501", severity="error", configuration="inductor-channels-last", location=a_location(14))
STAYED = a_finding(configuration="inductor-layout-opt-off", severity="note", location=a_location(40), seconds=1e-4)
BETTER = {"graphs": (a_graph(a_decision(), code_fingerprint="new"),), **pairs(0)}
VETOED = a_decision(
    a_convolution("convolution_1", class_="grouped", groups=32, channels_last=False),
    applied=False,
    rule="grouped-convolution",
    explanation="a grouped convolution",
)
FLIPPED = {"graphs": (a_graph(VETOED, code_fingerprint="new", graph_breaks=1),), "kernels": kernels(*reorders(1))}


def failed_in_one() -> Diagnosis:
    """A configuration that worked fails; another one is new."""
    new = a_run(1)
    *others, last = new.trials
    failed = a_failed_trial(last.name, "RuntimeError: could not create a primitive")
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None, kernels=None)
    comparison = msgspec.structs.replace(new.comparison, ratios=new.comparison.ratios[:3], fastest=("inductor",))
    changes = {"comparison": comparison, "recommendation": a_recommendation()}
    return msgspec.structs.replace(new, trials=(*others, failed, same), **changes)


COMPARISON_STORIES: Mapping[str, tuple[Diagnosis, Diagnosis]] = {
    "identical": (OLD, OLD),
    "regression": (
        OLD,
        a_run(
            1,
            {"inductor-channels-last": 1.3},
            {"inductor-channels-last": SLOWER},
            findings=(COPY, STAYED),
            recommendation=a_recommendation(),
        ),
    ),
    "improvement": (
        OLD,
        a_run(1, {"inductor-layout-opt-off": 0.8}, {"inductor-layout-opt-off": BETTER}, findings=()),
    ),
    "different_machine": (
        a_run(0, environment=an_environment(device_name="Intel Xeon 8488C")),
        a_run(
            1,
            {name: 0.48 if name == "inductor-channels-last" else 0.4 for name in MILLISECONDS},
            environment=an_environment(device_name="AMD EPYC 9554", cpu_count=64, thread_count=64),
        ),
    ),
    "decision_flipped": (OLD, a_run(1, trials={"inductor": FLIPPED}, findings=(STAYED,))),
    "failed_in_one": (OLD, failed_in_one()),
    "nothing_measured": (
        a_diagnosis(a_failed_trial("inductor"), a_trial("eager")),
        a_diagnosis(a_failed_trial("inductor", "RuntimeError: out of memory"), a_failed_trial("eager")),
    ),
}
