"""
What timing makes of the trials of a diagnosis: their times, how they compare, and what to recommend.

The same whether the configurations took turns in one process or each in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.examination.choice import choose_baseline, eligible_names, least_demanding_first, recommend
from layoutdoctor.examination.ratios import compare, open_questions
from layoutdoctor.isolation.rounds import measure_rounds, seconds_to_decide, to_measurement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.diagnosis.records import Comparison, Measurement, Recommendation, Trial
    from layoutdoctor.isolation.load import LoadMeter
    from layoutdoctor.isolation.messages import TrialMemo
    from layoutdoctor.isolation.rounds import Timer
    from layoutdoctor.units import Seconds


class Judged(NamedTuple):
    """The trials with their times, all of them in order; the comparison is None where fewer than two were timed."""

    trials: tuple[Trial, ...]
    comparison: Comparison | None
    recommendation: Recommendation


def time_in_turns(
    trials: Sequence[Trial],
    memos: Mapping[str, TrialMemo],
    steps: Mapping[str, Any],
    timer: Timer,
    *,
    earlier: Comparison | None,
    budget_seconds: Seconds | None,
    meter: LoadMeter | None,
    own_processes: bool = False,
    **options: Any,
) -> Judged:
    """
    Times all that runs in turns, compares and chooses.

    Args:
        trials: All of a diagnosis.
        memos: What else is known of them, by configuration.
        steps: What can be timed, as the timer takes it, by configuration; at least one.
        earlier: What a run that goes on here had concluded; the trials hold its times.
        own_processes: Whether each step is in a process of its own.
        options: More for ``measure_rounds``.
    """
    configurations = [trial.configuration for trial in trials]
    baseline = choose_baseline(configurations, steps)
    frozen = frozenset(configuration.name for configuration in configurations if configuration.freezes)
    eligible = eligible_names(trials)
    # From each of these one is named: from all whose outputs are right, and from those without frozen weights.
    choices = (eligible, eligible - frozen) if frozen & eligible else (eligible,)
    times = measure_rounds(
        steps,
        baseline=baseline,
        timer=timer,
        budget_seconds=budget_seconds,
        compile_seconds=sum(memo.compile_seconds or 0.0 for memo in memos.values()),
        choices=choices,
        meter=meter,
        before=_measured_before(trials, earlier, own_processes=own_processes),
        **options,
    )
    load = None if meter is None else meter.load()
    is_too_busy = load is not None and load.is_too_busy
    judged = []
    for trial in trials:
        item, memo = times.get(trial.name), memos.get(trial.name)
        if item is not None and item.failure is not None:
            trial = msgspec.structs.replace(
                trial, status="failed", failure=Failure(kind="measure", message=item.failure)
            )
        if item is not None and item.round_seconds:
            seconds, peak = (None, None) if memo is None else (memo.compile_seconds, memo.peak_memory_bytes)
            measurement = to_measurement(item, compile_seconds=seconds, peak_memory_bytes=peak)
            trial = msgspec.structs.replace(trial, measurement=measurement)
        judged.append(trial)
    rounds = {name: item.round_seconds for name, item in times.items() if item.failure is None}
    if rounds and baseline not in rounds:  # it failed while it was timed: the others are compared all the same
        baseline = choose_baseline(configurations, rounds)
    eligible = eligible_names(judged)
    free = {name: seconds for name, seconds in rounds.items() if name not in frozen}
    comparison, without_freezing = (
        least_demanding_first(compare(of, baseline, eligible=eligible, is_too_busy=is_too_busy), configurations)
        for of in (rounds, free)
    )
    if comparison is not None:
        open_ones = () if is_too_busy else open_questions(rounds, baseline, choices)
        wanted = seconds_to_decide(times, open_ones)
        comparison = msgspec.structs.replace(
            comparison,
            seconds_to_decide=wanted,
            load=load,
            own_processes=own_processes,
            slow_round_count=max(item.slow_round_count for item in times.values()),
        )
    how = {name: memo.how for name, memo in memos.items() if memo.how is not None}
    advice = recommend(judged, comparison, without_freezing if frozen else None, how)
    return Judged(tuple(judged), comparison, advice)


def _measured_before(
    trials: Sequence[Trial], earlier: Comparison | None, *, own_processes: bool
) -> dict[str, Measurement]:
    """What a run that ended undecided has measured; nothing where the machine was too busy for it to be of use."""
    if earlier is None or earlier.own_processes != own_processes or earlier.is_too_busy:
        return {}
    return {trial.name: trial.measurement for trial in trials if trial.measurement is not None}
