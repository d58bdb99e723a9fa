"""
Timing rounds: every configuration takes its turn in every round, until there is a verdict or the budget is spent.

The usual mistakes cannot be made here: the first calls of a configuration (compiling, allocating) are never a
measurement; a GPU is timed by events on its own clock and synchronised before any time is read; no configuration is
timed in one block after the other, so a machine that warms up or gets busy meets all of them alike; and what comes back
are raw times per round, not one average.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis.records import SLOWER, Measurement
from layoutdoctor.errors import first_line
from layoutdoctor.examination.ratios import (
    COVERAGE,
    LOOKS,
    family_coverage,
    leader,
    open_questions,
    paired_ratio,
    quiet_rounds,
    rounds_needed,
    rounds_to_decide,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import RatioInterval
    from layoutdoctor.isolation.load import LoadMeter
    from layoutdoctor.units import Bytes, Seconds

    Timer = Callable[[Any, int], tuple[Seconds, ...]]
    """Calls a step so many times; seconds of every call, in order."""

# An interval narrows with the root of the rounds: what is wide after so many would take far longer than anyone waits.
MAXIMUM_ROUNDS = LOOKS[-1]
# Without a budget, rounds may take this share of what compiling took, within these seconds.
COMPILING_SHARE = 0.5
LEAST_SECONDS = 30.0
MOST_SECONDS = 180.0
# Rounds a budget should pay for; fewer calls per round make room for them.
WANTED_ROUNDS = 32
# A configuration this many times slower than the best, with certainty, leaves the rounds to the others.
HOPELESS_RATIO = 1.5

# At one cost, more rounds with fewer calls find more than fewer rounds with more calls, and an untimed call at each
# turn buys nothing that the minimum of two does not give (benchmarks/README.md): the call that finds the caches full of
# another configuration's data is not the shortest.
BLOCK_SECONDS = 4e-3
_USUAL_CALLS = 4
MOST_CALLS = 64
# From here on, filling the caches again is too small a part of a call to need a second one.
_LONG_STEP_SECONDS = 0.1
_TELLING_SECONDS = 5.0
SHORTEST_SECONDS = 1e-9  # one tick of the clock: a ratio needs times above 0


@dataclass(frozen=True)
class RoundTimes:
    """
    What the rounds told of one configuration.

    Attributes:
        round_seconds: Per round the shortest of its calls; the n-th entry is the n-th round for every configuration.
        calls_per_round: Calls timed in each round, the same for all (the shortest of more calls would be shorter).
        dropped_after_round: Rounds it took part in before it was dropped as clearly slower; None where it was not.
        stopped_because: ``decided``, ``budget`` (of time or of rounds), ``dropped`` or ``failed``.
        failure: Class and text of the exception, where a call raised one.
        page_faults_per_call: Pages the system had to map in one call; None where it does not say.
        slow_round_count: Further rounds, left out because the machine was slower for all in them.
    """

    round_seconds: tuple[Seconds, ...]
    call_seconds: tuple[tuple[Seconds, ...], ...]
    calls_per_round: int
    dropped_after_round: int | None = None
    stopped_because: str | None = None
    failure: str | None = None
    page_faults_per_call: float | None = None
    slow_round_count: int = 0


def page_faults(step: object = None) -> int | None:
    """Pages that the system has mapped for this process so far, whatever is run; None where it does not say."""
    del step
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def telling(tell: Callable[[str], None]) -> Callable[[int, int, int], None]:
    """
    What to give ``measure_rounds`` so that somebody is told now and then which round it is, and after the first one
    whether the budget has time for a verdict.
    """
    last = time.monotonic()

    def on_round(count: int, expected: int, needed: int) -> None:
        nonlocal last
        too_few = f"; a verdict takes {needed}, so give a larger budget" if expected < needed else ""
        if time.monotonic() - last > _TELLING_SECONDS or (too_few and count == 1):
            last = time.monotonic()
            tell(f"timing all configurations in turns: round {count} of up to {expected}{too_few}")

    return on_round


def measure_rounds(
    steps: Mapping[str, Any],
    *,
    baseline: str,
    timer: Timer,
    faults: Callable[[Any], float | None] = page_faults,
    block_seconds: Seconds = BLOCK_SECONDS,
    failing: type[BaseException] = BaseException,
    budget_seconds: Seconds | None = None,
    compile_seconds: Seconds = 0.0,
    choices: Sequence[Collection[str]] | None = None,
    clock: Callable[[], Seconds] = time.perf_counter,
    maximum_rounds: int = MAXIMUM_ROUNDS,
    estimator: Callable[[tuple[Seconds, ...]], Seconds] = min,
    seed: int = 0,
    on_round: Callable[[int, int, int], None] | None = None,
    on_turn: Callable[[str], None] | None = None,
    meter: LoadMeter | None = None,
    before: Mapping[str, Measurement] | None = None,
) -> dict[str, RoundTimes]:
    """
    Times all configurations in turns.

    It stops when all that the choice hangs on is decided, at one of a few rounds fixed beforehand, or when the next
    round would overrun the budget. The intervals hold at all of these looks together, so looking again and again cannot
    make a winner. Rounds in which the machine was slower for all together are left out where the others are enough for
    a verdict: a neighbour that takes the memory's bandwidth slows some configurations more than others, for tens of
    seconds at a time. Thread count and the global random state stay as they are.

    Args:
        steps: One iteration of each configuration, compiled already, as the timer takes it; one of which the timer
            raises is left out from then on.
        faults: How many pages the system has mapped so far for whoever runs a step.
        block_seconds: What the calls of a turn may take together, where a call is short.
        failing: What a timer may raise for a step; of a model that runs in this process that is anything.
        budget_seconds: Wall time for the rounds; the warm-up before them is not counted, and one round there is in any
            case. None: a share of ``compile_seconds``, as much again where that should decide it, and never fewer
            rounds than a verdict needs.
        choices: From each of these the best is wanted; None for one of all.
        clock: Seconds from any start; what the budget is read from.
        estimator: What makes one number of a round's calls; only a benchmark has a reason to change it.
        seed: For the order of turns: random, then the same backwards, so that a drift meets all alike.
        on_round: Told the rounds done, how many there may be in all, and how many a verdict takes, after each.
        on_turn: Told whose turn it is, before each; what it takes is not timed.
        meter: Looks before the first round and after each.
        before: What an earlier run measured of the same configurations; its rounds come first, and these are added.

    Returns:
        One entry per configuration, in the order of ``steps``.
    """
    bound, further = (_bound(compile_seconds),) * 2 if budget_seconds is None else (budget_seconds, 0.0)
    rounds = _Rounds(steps, baseline, timer, faults, failing, choices or [frozenset(steps)], estimator, on_turn)
    fewest = rounds.needed if budget_seconds is None else 1
    rounds.warm_up(bound, block_seconds)
    done = rounds.take_over(before or {})
    start = last = clock()
    stopped = "budget"
    if meter is not None:
        meter.look()
    while rounds.active and rounds.count < done + maximum_rounds:
        rounds.run(_turns(rounds.active, rounds.count, seed))
        now = clock()
        if meter is not None:
            meter.look()
        affordable = _affordable_rounds(bound - (now - start), now - last)
        last = now
        if on_round is not None:
            on_round(rounds.count, min(max(rounds.count + affordable, fewest), done + maximum_rounds), rounds.needed)
        if rounds.count in LOOKS:
            if rounds.is_decided():
                stopped = "decided"
                break
            rounds.drop_hopeless()
        is_long = rounds.count >= fewest and now - start > MOST_SECONDS
        if not affordable and (is_long or rounds.has_enough(fewest)):
            if is_long or not 0 < rounds.seconds_to_decide() <= further:
                break
            bound, further = bound + further, 0.0
    return rounds.results(stopped)


def _bound(compile_seconds: Seconds) -> Seconds:
    """What rounds may take where nobody gave a budget: little beside the compiling that everybody waited for."""
    return min(max(COMPILING_SHARE * compile_seconds, LEAST_SECONDS), MOST_SECONDS)


def seconds_to_decide(times: Mapping[str, RoundTimes], open_ones: Sequence[RatioInterval]) -> Seconds | None:
    """
    About how long rounds would have to go on until what is open is decided; None where nothing is.

    As many of them are taken to be left out as were.

    Args:
        times: What ``measure_rounds`` gave.
        open_ones: What of it is not decided.
    """
    if not open_ones:
        return None
    measured = [entry for entry in times.values() if entry.call_seconds and entry.failure is None]
    done = max(len(entry.call_seconds) for entry in measured)
    active = [entry for entry in measured if len(entry.call_seconds) == done]
    needed = max(rounds_to_decide(ratio, len(measured)) for ratio in open_ones)
    per_round = sum(statistics.median(map(sum, entry.call_seconds)) for entry in active)
    all_rounds = 1 + max(entry.slow_round_count for entry in measured) / done
    return max(needed - done, 1) * all_rounds * per_round


def to_measurement(
    times: RoundTimes, *, compile_seconds: Seconds | None, peak_memory_bytes: Bytes | None
) -> Measurement:
    """
    The record of one configuration's times.

    Args:
        times: What ``measure_rounds`` gave, with at least one round.
        compile_seconds: Wall time of the first call; None for eager.
        peak_memory_bytes: Most bytes alive in an iteration; None where not known.

    Raises:
        ValueError: It took part in no round.
    """
    if not times.round_seconds:
        raise ValueError(f"cannot record a measurement of no round: {times.failure}; record a failure instead")
    return Measurement(
        round_seconds=times.round_seconds,
        median_seconds=statistics.median(times.round_seconds),
        compile_seconds=compile_seconds,
        peak_memory_bytes=peak_memory_bytes,
        call_seconds=times.call_seconds,
        calls_per_round=times.calls_per_round,
        dropped_after_round=times.dropped_after_round,
        stopped_because=times.stopped_because,
        page_faults_per_call=times.page_faults_per_call,
    )


class _Rounds:
    """The configurations still in, and the times so far; every active one has a time for every round."""

    def __init__(
        self,
        steps: Mapping[str, Any],
        baseline: str,
        timer: Timer,
        faults: Callable[[Any], float | None],
        failing: type[BaseException],
        choices: Sequence[Collection[str]],
        estimator: Callable[[tuple[Seconds, ...]], Seconds],
        on_turn: Callable[[str], None] | None,
    ) -> None:
        self.steps = dict(steps)
        self.active = list(steps)
        self.baseline = baseline
        self.timer = timer
        self.faults = faults
        self.failing = failing
        self.needed = rounds_needed(COVERAGE, len(steps))
        self.choices = choices
        self.estimator = estimator
        self.on_turn = on_turn
        self.count = 0
        self.calls = 1
        self.call_seconds: dict[str, list[tuple[Seconds, ...]]] = {name: [] for name in steps}
        self.round_seconds: dict[str, list[Seconds]] = {name: [] for name in steps}
        self.page_faults: dict[str, list[float]] = {name: [] for name in steps}
        self.dropped: set[str] = set()
        self.failures: dict[str, str] = {}

    def warm_up(self, budget_seconds: Seconds, block_seconds: Seconds) -> None:
        estimates: dict[str, Seconds] = {}
        for name in tuple(self.active):
            with self._failing_alone(name):
                self.timer(self.steps[name], 1)  # compiles, allocates, fills caches: never a measurement
                estimates[name] = min(self.timer(self.steps[name], 1))
                if estimates[name] < _LONG_STEP_SECONDS:
                    estimates[name] = min(self.timer(self.steps[name], _USUAL_CALLS))
        if estimates:
            self.calls = _choose_calls(estimates.values(), budget_seconds, block_seconds)

    def take_over(self, before: Mapping[str, Measurement]) -> int:
        """
        Puts the rounds of an earlier run first, where they are of the same configurations, each of as many calls.

        Returns:
            How many there are; 0 where they cannot be gone on with.
        """
        known = [(name, before[name]) for name in self.active if name in before]
        calls = {measurement.calls_per_round for _, measurement in known}
        if len(known) < len(self.active) or len(calls) != 1:
            return 0
        count = max(len(measurement.round_seconds) for _, measurement in known)
        if len(before[self.baseline].round_seconds if self.baseline in before else ()) < count:
            return 0
        for name, measurement in known:
            self.round_seconds[name] = list(measurement.round_seconds)
            self.call_seconds[name] = list(measurement.call_seconds)
            if len(measurement.round_seconds) < count:
                self.dropped.add(name)
                self.active.remove(name)
        self.calls, self.count = calls.pop(), count
        return count

    def run(self, order: list[str]) -> None:
        for name in order:
            with self._failing_alone(name):
                before = self.faults(self.steps[name])
                times = self.timer(self.steps[name], self.calls)
                if before is not None:
                    self.page_faults[name].append(((self.faults(self.steps[name]) or before) - before) / self.calls)
                self.call_seconds[name].append(times)
                self.round_seconds[name].append(self.estimator(times))
        self.count += 1

    def _quiet(self) -> list[int]:
        return quiet_rounds([seconds for seconds in self.round_seconds.values() if seconds])

    def _counting(self) -> list[int]:
        """The quiet rounds, where those are enough for a verdict of every configuration; else all."""
        quiet = self._quiet()
        fewest = min((len(seconds) for seconds in self._timed().values()), default=0)
        are_enough = sum(number < fewest for number in quiet) >= self.needed
        return quiet if are_enough else list(range(self.count))

    def has_enough(self, count: int) -> bool:
        """Whether there are so many rounds, quiet ones unless they are rare."""
        return self.count >= count and (len(self._quiet()) >= count or self.count >= 2 * count)

    def _open(self) -> Sequence[RatioInterval]:
        times = self._measured()
        return open_questions(times, self.baseline, self.choices) if self.baseline in times else ()

    def is_decided(self) -> bool:
        return self.baseline in self.failures or (self.has_enough(self.needed) and not self._open())

    def seconds_to_decide(self) -> Seconds:
        """About how long it would take to decide what is open; 0 where nothing is."""
        return seconds_to_decide(self.results("budget"), self._open()) or 0.0

    def drop_hopeless(self) -> None:
        """Takes out what is far slower than the best of every choice that it is in."""
        times = self._measured()
        if self.baseline not in times or len(self._quiet()) < self.needed:
            return
        groups = [[name for name in times if name in choice] for choice in (*self.choices, tuple(times))]
        best = {leader(times, group, self.baseline): group for group in groups if group}
        for name in [name for name in self.active if name not in best and name != self.baseline]:
            rivals = [one for one, group in best.items() if name in group]
            if all(self._is_hopeless(name, rival, times) for rival in rivals):
                self.dropped.add(name)
                self.active.remove(name)

    def _is_hopeless(self, name: str, best: str, times: Mapping[str, Sequence[Seconds]]) -> bool:
        single = family_coverage(COVERAGE, len(times))
        ratio = paired_ratio(name, times[best], times[name], coverage=single)
        return ratio.verdict == SLOWER and ratio.high < 1 / HOPELESS_RATIO

    def _timed(self) -> dict[str, list[Seconds]]:
        return {name: seconds for name, seconds in self.round_seconds.items() if seconds and name not in self.failures}

    def _measured(self) -> dict[str, list[Seconds]]:
        kept = self._counting()
        return {name: [seconds[n] for n in kept if n < len(seconds)] for name, seconds in self._timed().items()}

    def results(self, stopped: str) -> dict[str, RoundTimes]:
        kept = self._counting()
        own = {name: [number for number in kept if number < len(self.round_seconds[name])] for name in self.steps}
        return {
            name: RoundTimes(
                round_seconds=tuple(self.round_seconds[name][number] for number in own[name]),
                call_seconds=tuple(self.call_seconds[name][number] for number in own[name]),
                calls_per_round=self.calls,
                dropped_after_round=len(own[name]) if name in self.dropped else None,
                stopped_because="failed" if name in self.failures else "dropped" if name in self.dropped else stopped,
                failure=self.failures.get(name),
                page_faults_per_call=statistics.median(self.page_faults[name]) if self.page_faults[name] else None,
                slow_round_count=self.count - len(kept),
            )
            for name in self.steps
        }

    @contextlib.contextmanager
    def _failing_alone(self, name: str) -> Iterator[None]:
        if self.on_turn is not None:
            self.on_turn(name)
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except self.failing as error:  # whatever a model raises; the other configurations go on
            self.failures[name] = first_line(error)
            self.active.remove(name)


def _turns(names: list[str], count: int, seed: int) -> list[str]:
    """Random order in even rounds, the same backwards in odd ones."""
    order = random.Random(f"{seed}/{count // 2}").sample(names, len(names))
    return order[::-1] if count % 2 else order


def _choose_calls(estimates: Collection[Seconds], budget_seconds: Seconds, block_seconds: Seconds) -> int:
    shortest = min(estimates)
    by_duration = min(max(math.ceil(block_seconds / shortest), _USUAL_CALLS), MOST_CALLS)
    by_budget = int(budget_seconds / (WANTED_ROUNDS * sum(estimates)))
    return max(min(by_duration, by_budget), 1 if shortest >= _LONG_STEP_SECONDS else 2)


def _affordable_rounds(remaining_seconds: Seconds, round_seconds: Seconds) -> int:
    if remaining_seconds <= 0:
        return 0
    return MAXIMUM_ROUNDS if round_seconds <= 0 else int(min(remaining_seconds / round_seconds, MAXIMUM_ROUNDS))
