"""
What became of the times of each configuration between two diagnoses, and what of that is the machine's.

A time is never judged by itself. The same model, diagnosed twice in a row on a shared machine that nobody used, took up
to 3.3 times as long (in half of all cases 1.4 times), while the ratio of two configurations that ran side by side moved
by 3 % at most in 99 of 100 pairs of diagnoses, by 5 % in the worst of 4,950. So times are judged against references,
configurations that stand for the machine, by how the ratio to them changed; each ratio is taken round by round within
its own run, where both were measured in turns. References are

- ``same code``: where there are any, those that run the same code under the same versions and settings in both. What
  became of their times the model has not done.
- ``steady``: else the configurations that moved alike, if they are more than half and two at least, and their own times
  changed by less than the steadiness.
- ``majority``: the same, where their times did change, and that of no other configuration stayed as it was. The machine
  moves all alike; which of machine, versions and model did it cannot be told from times.

Else nothing is judged: with two configurations that moved apart, either may have; and where most moved and one stayed,
either the machine moved and that one made up for it, or the others changed. A configuration is faster or slower where
it is so against the references, on the geometric mean, with an interval clear of 1 by the resolution. The intervals of
all configurations and of all their pairs hold together, and so does the mean of any of them, end by end: choosing the
references by what was seen costs nothing.

Source:
    The figures are of the 100 diagnoses in benchmarks/results/false_winner_quiet.json (``step_seconds``, and the
    intervals of one object measured under two names), compared pair by pair; the 3.3 is of neighbours.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.diagnosis.comparison import EnvironmentDifference, RatioBounds, TimeChange, TimeSummary
from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.examination.ratios import (
    COVERAGE,
    LEAST_COVERAGE,
    effective_count,
    fewest_rounds,
    judge,
    median_interval,
    round_ratios,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Measurement, Trial, Verdict

_SIDES = 2  # both medians have an interval, and either may miss


def ratio_of_medians(old: Sequence[float], new: Sequence[float], *, interval_count: int) -> RatioBounds:
    """
    The median of one run over that of another, with an interval for the true ratio.

    Args:
        old: Positive values of the old run, in round order, at least one.
        interval_count: Intervals that are to hold together; the error allowed is shared among them.

    Returns:
        Ends that hold together with ``COVERAGE``, with ``LEAST_COVERAGE`` where the rounds are too few for that; with
        coverage None, and ends from smallest over largest to largest over smallest, where they are too few for either.
    """
    for coverage in (COVERAGE, LEAST_COVERAGE):
        single = _single_coverage(coverage, interval_count)
        before, after = (median_interval(run, single, effective_count(run)) for run in (old, new))
        is_sure = before.coverage is not None and after.coverage is not None
        if is_sure:
            break
    return RatioBounds(
        low=before.low / after.high,
        median=before.median / after.median,
        high=before.high / after.low,
        coverage=coverage if is_sure else None,
    )


def _single_coverage(coverage: float, interval_count: int) -> float:
    return 1 - (1 - coverage) / (_SIDES * interval_count)


def rounds_needed_between_runs(interval_count: int) -> int:
    """Rounds of each run below which so many ratios of medians have no intervals together, however steady the times."""
    return fewest_rounds(_single_coverage(LEAST_COVERAGE, interval_count))


def mean_of_bounds(ratios: Sequence[RatioBounds]) -> RatioBounds:
    """
    The geometric mean of several ratios whose intervals hold together: it lies between the means of their ends then.

    Returns:
        With the lowest coverage among them; None where one of them has none.
    """
    coverages = [ratio.coverage for ratio in ratios if ratio.coverage is not None]
    return RatioBounds(
        low=statistics.geometric_mean(ratio.low for ratio in ratios),
        median=statistics.geometric_mean(ratio.median for ratio in ratios),
        high=statistics.geometric_mean(ratio.high for ratio in ratios),
        coverage=min(coverages) if len(coverages) == len(ratios) else None,
    )


_FIELDS = (
    "device_name",
    "torch",
    "cuda",
    "cudnn",
    "triton",
    "onednn",
    "onednn_isa",
    "compiler",
    "python",
    "platform",
    "thread_count",
    "cpu_count",
)


def environment_changes(old: Diagnosis, new: Diagnosis) -> tuple[EnvironmentDifference, ...]:
    """What is not the same, the device first, then versions, then settings by name."""
    values = [("device", old.subject.device, new.subject.device)]
    values += [(name, getattr(old.environment, name), getattr(new.environment, name)) for name in _FIELDS]
    before, after = old.environment.settings, new.environment.settings
    values += [(f"setting {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    return tuple(
        EnvironmentDifference(name=name, old=None if once is None else str(once), new=None if now is None else str(now))
        for name, once, now in values
        if once != now
    )


def has_another_device(old: Diagnosis, new: Diagnosis) -> bool:
    """Whether two diagnoses are known to come from different devices."""
    names = (old.environment.device_name, new.environment.device_name)
    return _differ(((old.subject.device, new.subject.device), names))


def has_another_machine(old: Diagnosis, new: Diagnosis) -> bool:
    """Whether two diagnoses are known to come from machines whose times cannot be compared: by threads as well."""
    names = ("onednn_isa", "cpu_count", "thread_count")
    return has_another_device(old, new) or _differ(
        (getattr(old.environment, name), getattr(new.environment, name)) for name in names
    )


def _differ(pairs: Iterable[tuple[object, object]]) -> bool:
    return any(once is not None and now is not None and once != now for once, now in pairs)


RESOLUTION = 0.05
"""Two runs of one thing may differ by this in their ratio to the same reference; quiet ones hardly ever do."""

STEADINESS = 0.10
"""A time that moved by less than this is a sign that the machine did not change either."""

DRIFT_RESOLUTION = 0.01
"""A drift of all references beyond this is told; it is no verdict on the model."""

UNSTABLE = "LD401"
"""The finding that says that times scatter or drift too much; its evidence names the configurations."""

WITH_RESULT = ("ok", "same_as")
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1e-10, 1e7  # no clock is finer, nobody waits longer


class _Rounds(NamedTuple):
    """Round times of one configuration in both runs, each the shortest of as many calls; and why not to judge them."""

    old: tuple[float, ...]
    new: tuple[float, ...]
    problem: str | None


def time_changes(
    old: Diagnosis, new: Diagnosis, not_comparable: str | None
) -> tuple[dict[str, TimeChange], TimeSummary]:
    """
    What became of the time of every configuration that was measured in both.

    Args:
        not_comparable: Why their times are of different work; None where they are of the same.

    Returns:
        By configuration, and how they were judged. On another machine times are not judged, ratios to the baseline are.
    """
    rounds = {
        name: _rounds_of(*pair, _problem_of(old, new, name)) for name, pair in _measured_in_both(old, new).items()
    }
    if not_comparable is not None or not rounds:
        why = not_comparable or "no configuration was measured in both"
        unjudged = {
            name: TimeChange(old_round_count=len(pair.old), new_round_count=len(pair.new), not_judged=why)
            for name, pair in rounds.items()
        }
        return unjudged, TimeSummary(not_judged=why)
    judging = _Judging(old, new, rounds)
    return {name: judging.change_of(name) for name in rounds}, judging.summary()


class _Judging:
    """The intervals of all configurations and pairs, the references among them, and what follows for each."""

    def __init__(self, old: Diagnosis, new: Diagnosis, rounds: Mapping[str, _Rounds]) -> None:
        self.rounds = rounds
        self.measured_as = {name: (_measured_name(old, name), _measured_name(new, name)) for name in rounds}
        self.code = {name: _has_same_code(old, new, name) for name in rounds}
        sound = [name for name, pair in rounds.items() if pair.problem is None]
        # What is measured once under several names is one configuration here.
        self.distinct = list({self.measured_as[name]: name for name in reversed(sound)}.values())[::-1]
        count = len(self.distinct)
        self.interval_count = max(count * (count + 1) // 2, 1)
        needed = rounds_needed_between_runs(self.interval_count)
        self.absolute = {name: self._absolute(name) for name in rounds}
        self.few = {name for name in sound if len(rounds[name].old) < needed or len(rounds[name].new) < needed}
        self.other_machine = has_another_machine(old, new)
        baselines = {diagnosis.comparison.baseline for diagnosis in (old, new) if diagnosis.comparison is not None}
        self.baseline = next(iter(baselines)) if len(baselines) == 1 else None
        self.references, self.basis = ((), None) if self.other_machine else self._choose_references()

    def change_of(self, name: str) -> TimeChange:
        pair = self.rounds[name]
        against_baseline = self._against_baseline(name)
        change = TimeChange(
            old_round_count=len(pair.old),
            new_round_count=len(pair.new),
            absolute=self.absolute[name],
            relative_to_baseline=against_baseline,
            baseline_verdict=judge(against_baseline, RESOLUTION) if against_baseline and not pair.problem else None,
            has_same_code=self.code[name],
        )
        problem = self._problem(name)
        if problem is not None:
            return msgspec.structs.replace(change, not_judged=problem)
        bounds, verdict = self._verdict(name)
        return msgspec.structs.replace(
            change,
            references=self.references,
            change=bounds,
            verdict=verdict,
            not_judged="its rounds hang together too much; give a larger --budget" if verdict is None else None,
        )

    def summary(self) -> TimeSummary:
        drifts = [self.absolute[name] for name in self.references if self.absolute[name].coverage is not None]
        drift = mean_of_bounds(drifts) if drifts else None
        problems = [self._problem(name) for name in self.rounds]
        return TimeSummary(
            resolution=RESOLUTION,
            steadiness=STEADINESS,
            references=self.references,
            basis=self.basis,
            drift=drift,
            has_drifted=drift is not None and judge(drift, DRIFT_RESOLUTION) in (FASTER, SLOWER),
            is_other_machine=self.other_machine,
            not_judged=None if None in problems else statistics.mode(problems),
        )

    def _absolute(self, name: str) -> RatioBounds:
        pair = self.rounds[name]
        return ratio_of_medians(pair.old, pair.new, interval_count=self.interval_count)

    def _problem(self, name: str) -> str | None:
        if self.other_machine:
            return "another machine or thread count"
        if self.rounds[name].problem is not None:
            return self.rounds[name].problem
        if name in self.few:
            fewest = min(len(self.rounds[name].old), len(self.rounds[name].new))
            return f"too few rounds ({fewest} in the shorter run); give a larger --budget"
        if not self.references and len(self.distinct) == 1:
            return "nothing else was timed in both that would tell it from the machine; measure three configurations"
        if not self.references:
            return "times moved apart, so that the machine cannot be told from the configurations; measure both again"
        return None

    def _choose_references(self) -> tuple[tuple[str, ...], str | None]:
        judged = [name for name in self.distinct if name not in self.few]
        controls = [name for name in judged if self.code[name]]
        if controls:
            group = self._agreeing(controls)
            return (group, "same code") if 2 * len(group) > len(controls) else ((), None)
        group = self._agreeing(judged)
        if len(group) < 2 or 2 * len(group) <= len(judged):
            return (), None
        if any(map(self._is_steady, group)):
            return group, "steady"
        # Most moved and another did not: either the machine moved and that one as well, or most of them alone.
        return ((), None) if any(map(self._is_steady, judged)) else (group, "majority")

    def _agreeing(self, names: Sequence[str]) -> tuple[str, ...]:
        """The largest group that moved as one of its members did; of several, that of the one that moved least."""
        groups = [
            tuple(
                name
                for name in names
                if name == leader or judge(self._relative(name, leader), RESOLUTION) == NO_DIFFERENCE
            )
            for leader in sorted(names, key=self._moved)
        ]
        return max(groups, key=len, default=())

    def _is_steady(self, name: str) -> bool:
        return self._moved(name) <= math.log1p(STEADINESS)

    def _moved(self, name: str) -> float:
        return abs(math.log(self.absolute[name].median))

    def _relative(self, name: str, reference: str) -> RatioBounds:
        """How many times faster than the reference it was, round by round: new over old."""
        one, other = self.rounds[name], self.rounds[reference]
        return ratio_of_medians(
            round_ratios(other.new, one.new), round_ratios(other.old, one.old), interval_count=self.interval_count
        )

    def _against_baseline(self, name: str) -> RatioBounds | None:
        baseline = self.baseline
        if baseline is None or name == baseline or baseline not in self.rounds or self.rounds[baseline].problem:
            return None
        return self._relative(name, baseline)

    def _verdict(self, name: str) -> tuple[RatioBounds, Verdict | None]:
        others = [other for other in self.references if self.measured_as[other] != self.measured_as[name]]
        if len(others) < len(self.references):
            # A reference stands for the machine: nothing of its change is its own, as far as can be told.
            return RatioBounds(low=1.0, median=1.0, high=1.0, coverage=self.absolute[name].coverage), NO_DIFFERENCE
        bounds = mean_of_bounds([self._relative(name, other) for other in others])
        return bounds, judge(bounds, RESOLUTION)


def _measured_in_both(old: Diagnosis, new: Diagnosis) -> dict[str, tuple[Measurement, Measurement]]:
    pairs = {trial.name: (_measurement_of(old, trial.name), _measurement_of(new, trial.name)) for trial in new.trials}
    return {name: (before, after) for name, (before, after) in pairs.items() if before and after}


def _measurement_of(diagnosis: Diagnosis, name: str) -> Measurement | None:
    trial = diagnosis.find_trial(name)
    if trial is None or trial.status not in WITH_RESULT:
        return None
    measured = diagnosis.measured_trial(name)
    measurement = measured.measurement if measured is not None else None
    if measurement is None or not measurement.round_seconds:
        return None
    return measurement if all(map(_is_duration, measurement.round_seconds)) else None


def _is_duration(seconds: float) -> bool:
    return _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS


def _measured_name(diagnosis: Diagnosis, name: str) -> str:
    trial = diagnosis.measured_trial(name)
    return trial.name if trial is not None else name


def _rounds_of(before: Measurement, after: Measurement, problem: str | None) -> _Rounds:
    calls = min(before.calls_per_round, after.calls_per_round)
    old_rounds, new_rounds = _shortest_of(before, calls), _shortest_of(after, calls)
    if before.estimator != after.estimator or old_rounds is None or new_rounds is None:
        problem = problem or "a round's time was made from its calls in another way"
    return _Rounds(old_rounds or before.round_seconds, new_rounds or after.round_seconds, problem)


def _shortest_of(measurement: Measurement, calls: int) -> tuple[float, ...] | None:
    """Round times as of so many calls in each: the shortest of more calls would be shorter. None where not recorded."""
    if measurement.calls_per_round == calls:
        return measurement.round_seconds
    recorded = measurement.call_seconds
    if measurement.estimator != "minimum" or len(recorded) != len(measurement.round_seconds):
        return None
    if not all(len(times) >= calls and all(map(_is_duration, times)) for times in recorded):
        return None
    return tuple(min(times[:calls]) for times in recorded)


def _problem_of(old: Diagnosis, new: Diagnosis, name: str) -> str | None:
    """Why the times of a configuration cannot be judged, from its own records."""
    before, after = old.measured_trial(name), new.measured_trial(name)
    trials = [trial for trial in (before, after) if trial is not None]
    named = [trial for trial in (old.find_trial(name), new.find_trial(name)) if trial is not None]
    if len({msgspec.json.encode(trial.configuration) for trial in named}) > 1:
        return "the configuration has other options"
    for age, trial in zip(("old", "new"), trials, strict=False):
        if trial.equivalence is not None and trial.equivalence.status == "different":
            return f"its outputs are wrong in the {age} one"
    for age, diagnosis, trial in zip(("old", "new"), (old, new), trials, strict=False):
        if _is_unstable(diagnosis, {name, trial.name}):
            return f"unstable in the {age} one ({UNSTABLE}); measure again on a quiet machine"
    return None


def _is_unstable(diagnosis: Diagnosis, names: set[str]) -> bool:
    doubts = [finding for finding in diagnosis.findings if finding.code == UNSTABLE]
    return any(not doubt.evidence or names & set(doubt.evidence) for doubt in doubts)


def _has_same_code(old: Diagnosis, new: Diagnosis, name: str) -> bool | None:
    codes = [_code_of(diagnosis.measured_trial(name)) for diagnosis in (old, new)]
    if None in codes:
        return None
    return codes[0] == codes[1] and not environment_changes(old, new)


def _code_of(trial: Trial | None) -> tuple[object, ...] | None:
    """What ran, without names of files and lines; None where it was not recorded in full."""
    if trial is None or not trial.graphs:
        return None
    if trial.configuration.backend == "inductor":
        prints = tuple(graph.code_fingerprint for graph in trial.graphs)
        return None if None in prints else prints
    operations = tuple(
        (node.name, node.target, node.inputs, node.layout, node.dtype, node.arguments)
        for graph in trial.graphs
        for node in graph.nodes
    )
    return operations or None
