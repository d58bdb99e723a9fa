"""What is said of times between two runs: simulated machines that drift, scatter and stumble, with changes planted."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_configuration, a_diagnosis, a_graph, a_measurement, a_node, a_trial, an_environment
from loops import for_each

from layoutdoctor.diagnosis.records import Diagnosis, Equivalence
from layoutdoctor.examination.changes.times import RESOLUTION, time_changes
from layoutdoctor.examination.ratios import compare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.comparison import TimeChange, TimeSummary

ROOT = Path(__file__).parents[3]
MILLISECONDS = {
    "inductor": 15.2,
    "eager": 25.0,
    "inductor-channels-last": 11.9,
    "inductor-layout-opt-off": 16.3,
    "eager-channels-last": 16.4,
}
CHANGED = "inductor-channels-last"


def quiet(generator: random.Random, count: int) -> list[float]:
    return [generator.lognormvariate(0, 0.02) for _ in range(count)]


def scattered(generator: random.Random, count: int) -> list[float]:
    return [1 + generator.expovariate(1 / 0.06) for _ in range(count)]


def stumbling(generator: random.Random, count: int) -> list[float]:
    return [
        generator.lognormvariate(0, 0.02) * (generator.uniform(1.5, 6) if generator.random() < 0.1 else 1)
        for _ in range(count)
    ]


def wandering(generator: random.Random, count: int) -> list[float]:
    value, times = 0.0, []
    for _ in range(count):
        value = 0.9 * value + generator.gauss(0, 0.013)
        times.append(math.exp(value))
    return times


def warming_up(generator: random.Random, count: int) -> list[float]:
    return [generator.lognormvariate(0, 0.01) * (1 + 0.15 * number / count) for number in range(count)]


NOISES = {noise.__name__: noise for noise in (quiet, scattered, stumbling, wandering, warming_up)}


def a_run(
    generator: random.Random,
    *,
    names: tuple[str, ...] = tuple(MILLISECONDS),
    count: int = 40,
    machine: float | None = None,
    common: Any = quiet,
    own: Any = quiet,
    factors: Mapping[str, float] | None = None,
    codes: Mapping[str, str] | None = None,
    **changes: Any,
) -> Diagnosis:
    """
    One run of a machine whose pace is its own this time, as is where each model lies in memory (1 %).

    ``common`` noise hits all configurations of a round alike, ``own`` noise each by itself.
    """
    pace = machine if machine is not None else generator.lognormvariate(0, 0.3)
    meanwhile = common(generator, count)
    times = {}
    for name in names:
        placed = pace * generator.lognormvariate(0, 0.01) * (factors or {}).get(name, 1.0) * MILLISECONDS[name] * 1e-3
        times[name] = [placed * a * b for a, b in zip(meanwhile, own(generator, count), strict=True)]
    trials = tuple(
        a_trial(
            name,
            measurement=a_measurement(*times[name]),
            graphs=(
                a_graph(code_fingerprint=(codes or {}).get(name, "a"), nodes=(a_node((codes or {}).get(name, "a")),)),
            ),
        )
        for name in names
    )
    return a_diagnosis(*trials, **{"comparison": compare(times, names[0]), **changes})


def judged(old: Diagnosis, new: Diagnosis) -> tuple[dict[str, TimeChange], TimeSummary]:
    return time_changes(old, new, None)


def verdicts(old: Diagnosis, new: Diagnosis) -> dict[str, str | None]:
    return {name: change.verdict for name, change in judged(old, new)[0].items()}


def with_trial(diagnosis: Diagnosis, name: str, **changes: Any) -> Diagnosis:
    trials = tuple(
        msgspec.structs.replace(trial, **changes) if trial.name == name else trial for trial in diagnosis.trials
    )
    return msgspec.structs.replace(diagnosis, trials=trials)


NEW_CODE = dict.fromkeys(MILLISECONDS, "b")


@pytest.mark.thorough
@for_each("codes", [None, NEW_CODE])
@for_each("names", [("inductor", "eager", CHANGED), tuple(MILLISECONDS)])
@for_each("where", ["common", "own"])
@for_each("noise", NOISES)
def test_nothing_changed_is_never_a_change(
    noise: str, where: str, names: tuple[str, ...], codes: Mapping[str, str] | None
) -> None:
    generator = random.Random(f"{noise} {where} {len(names)} {codes}")
    for _ in range(25):
        options: dict[str, Any] = {"names": names, "count": generator.choice((12, 20, 40, 64)), where: NOISES[noise]}
        old, new = a_run(generator, **options), a_run(generator, codes=codes, **options)

        assert set(verdicts(old, new).values()) <= {"no measurable difference", None}


@pytest.mark.parametrize(
    ("factor", "count", "noise", "at_least"),
    [
        (1.10, 96, quiet, 16),
        (1.15, 40, quiet, 16),
        (1.30, 24, quiet, 19),
        (1.30, 48, scattered, 16),
        (1 / 1.3, 48, quiet, 19),
    ],
)
def test_a_change_of_one_configuration_is_found_and_only_there(
    factor: float, count: int, noise: Any, at_least: int
) -> None:
    generator = random.Random(f"{factor} {count}")
    found = 0
    for _ in range(20):
        old = a_run(generator, count=count, own=noise)
        new = a_run(generator, count=count, own=noise, factors={CHANGED: factor}, codes={CHANGED: "b"})
        said = verdicts(old, new)
        expected = "slower" if factor > 1 else "faster"

        assert said.pop(CHANGED) in (expected, "no measurable difference", None)
        assert set(said.values()) <= {"no measurable difference", None}
        found += verdicts(old, new)[CHANGED] == expected

    assert found >= at_least


def test_where_all_code_changed_the_configurations_that_moved_alike_stand_for_the_machine() -> None:
    generator = random.Random(6)
    old = a_run(generator, machine=1.0)
    new = a_run(generator, machine=1.4, factors={CHANGED: 1.3}, codes=NEW_CODE)
    changes, summary = judged(old, new)

    assert summary.basis == "majority"
    assert CHANGED not in summary.references
    assert changes[CHANGED].verdict == "slower"
    assert changes[CHANGED].change.median == pytest.approx(1 / 1.3, rel=0.03)
    assert changes[CHANGED].absolute.median == pytest.approx(1 / (1.4 * 1.3), rel=0.03)
    assert summary.has_drifted
    assert summary.drift.median == pytest.approx(1 / 1.4, rel=0.03)


def test_configurations_that_cannot_be_told_from_the_machine_are_not_judged() -> None:
    generator = random.Random(8)
    names = ("inductor", CHANGED)
    old = a_run(generator, names=names, machine=1.0)
    new = a_run(generator, names=names, machine=1.0, factors={CHANGED: 1.5}, codes=NEW_CODE)
    changes, summary = judged(old, new)

    assert [change.verdict for change in changes.values()] == [None, None]
    assert "moved apart" in summary.not_judged
    assert changes[CHANGED].baseline_verdict == "slower"

    generator = random.Random(10)
    old = a_run(generator, names=("inductor",))
    changes, _ = judged(old, a_run(generator, names=("inductor",), codes=NEW_CODE))

    assert changes["inductor"].verdict is None
    assert "measure three configurations" in changes["inductor"].not_judged
    assert verdicts(old, a_run(generator, names=("inductor",))) == {"inductor": "no measurable difference"}


@pytest.mark.parametrize(
    ("trial", "known"),
    [
        ({"graphs": ()}, None),
        ({"graphs": (a_graph(code_fingerprint=None),)}, None),
        ({"graphs": (a_graph(code_fingerprint="b"),)}, False),
        ({}, True),
    ],
)
def test_code_that_was_not_recorded_is_not_known(trial: dict[str, Any], known: bool | None) -> None:
    old = a_run(random.Random(12))

    assert judged(old, with_trial(old, "inductor", **trial))[0]["inductor"].has_same_code is known


@pytest.mark.parametrize(
    "environment", [{"device_name": "another"}, {"thread_count": 8}, {"cpu_count": 64}, {"onednn_isa": "AVX2"}]
)
def test_on_another_machine_only_ratios_to_the_baseline_are_judged(environment: dict[str, Any]) -> None:
    generator = random.Random(13)
    old = a_run(generator, environment=an_environment(device_name="one"))
    surroundings = an_environment(**{"device_name": "one", **environment})
    new = a_run(generator, machine=0.2, factors={CHANGED: 1.3}, environment=surroundings)
    changes, summary = judged(old, new)

    assert summary.is_other_machine
    assert {change.verdict for change in changes.values()} == {None}
    assert changes[CHANGED].absolute is not None
    assert changes[CHANGED].baseline_verdict == "slower"
    assert changes["eager"].baseline_verdict == "no measurable difference"
    assert changes["inductor"].relative_to_baseline is None


def test_the_shortest_of_more_calls_is_made_the_shortest_of_as_many() -> None:
    generator = random.Random(19)

    def with_calls(diagnosis: Diagnosis, calls: int) -> Diagnosis:
        """The same machine, a round being the shortest of so many calls that differ by 30 %."""
        for trial in diagnosis.trials:
            rounds = [
                tuple(seconds * (1 + generator.expovariate(1 / 0.3)) for _ in range(calls))
                for seconds in trial.measurement.round_seconds
            ]
            measurement = msgspec.structs.replace(
                trial.measurement,
                call_seconds=tuple(rounds),
                round_seconds=tuple(map(min, rounds)),
                calls_per_round=calls,
            )
            diagnosis = with_trial(diagnosis, trial.name, measurement=measurement)
        return diagnosis

    old, new = (
        with_calls(a_run(generator, count=300, machine=1.0), 2),
        with_calls(a_run(generator, count=300, machine=1.0), 16),
    )
    changes, summary = judged(old, new)

    assert summary.drift.median == pytest.approx(1.0, abs=0.05)  # 1.13 as the rounds stand
    assert {change.verdict for change in changes.values()} == {"no measurable difference"}
    without = with_trial(
        new, "eager", measurement=msgspec.structs.replace(new.trial("eager").measurement, call_seconds=())
    )
    assert judged(old, without)[0]["eager"].not_judged == "a round's time was made from its calls in another way"


def test_dropped_configurations_are_judged_by_their_rounds_and_those_of_two_names_once() -> None:
    generator = random.Random(18)
    new = a_run(generator, count=64)
    times = new.trial("eager").measurement
    dropped = msgspec.structs.replace(times, round_seconds=times.round_seconds[:24], dropped_after_round=24)
    changes, _ = judged(a_run(generator, count=64), with_trial(new, "eager", measurement=dropped))

    assert changes["eager"].new_round_count == 24
    assert changes["eager"].verdict == "no measurable difference"

    generator = random.Random(20)
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None)
    runs = [a_run(generator) for _ in range(2)]
    doubled = [msgspec.structs.replace(run, trials=(*run.trials, same)) for run in runs]
    changes, summary = judged(*doubled)

    assert changes["inductor-layout-opt-on"].absolute == changes["inductor"].absolute
    assert changes["inductor"].absolute == judged(*runs)[0]["inductor"].absolute
    assert "inductor-layout-opt-on" not in summary.references
    assert changes["inductor-layout-opt-on"].verdict == "no measurable difference"


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e300, 1e-300])
def test_times_that_no_clock_gives_are_no_measurement(seconds: float) -> None:
    generator = random.Random(23)
    new = with_trial(a_run(generator), "eager", measurement=a_measurement(*[seconds] * 40))

    assert "eager" not in judged(a_run(generator), new)[0]


def test_the_figures_that_the_resolution_rests_on_are_those_recorded() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / "false_winner_quiet.json").read_bytes())["diagnoses"]
    steps = [math.log(diagnosis["step_seconds"]) for diagnosis in recorded]
    neighbours = sorted(abs(one - other) for one, other in pairwise(steps))
    ratios = [math.log(diagnosis["intervals"]["same object"][1]) for diagnosis in recorded]
    changes = sorted(abs(one - other) for one, other in combinations(ratios, 2))

    assert math.exp(neighbours[-1]) == pytest.approx(3.3, abs=0.05)
    assert math.exp(neighbours[len(neighbours) // 2]) == pytest.approx(1.4, abs=0.05)
    assert len(changes) == 4950
    assert math.exp(changes[int(0.99 * len(changes))]) == pytest.approx(1.03, abs=0.005)
    assert math.exp(changes[-1]) == pytest.approx(1 + RESOLUTION, abs=0.005)
    assert sum(change > math.log1p(RESOLUTION) for change in changes) <= 2


@for_each(
    ("changes", "why"),
    [
        ({"equivalence": Equivalence(status="different")}, "its outputs are wrong in the new one"),
        (
            {"configuration": a_configuration(CHANGED, inductor_options={"max_autotune": True})},
            "the configuration has other options",
        ),
        ({"measurement": a_measurement(*[1.0] * 5)}, "too few rounds (5 in the shorter run); give a larger --budget"),
    ],
)
def test_what_is_not_the_same_measurement_is_not_judged(changes: dict[str, Any], why: str) -> None:
    generator = random.Random(15)
    change = judged(a_run(generator), with_trial(a_run(generator), CHANGED, **changes))[0][CHANGED]

    assert (change.verdict, change.not_judged) == (None, why)
