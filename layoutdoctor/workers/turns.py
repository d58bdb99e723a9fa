"""
Schedules the configurations: they compile side by side, and then are timed in turns.

In a round, each configuration has one turn: a few calls, whose median time counts. First come rounds of all
configurations, then further rounds and starts (new processes) of configurations that may be the fastest. The order
changes from round to round, so that a regular disturbance of the machine does not always meet the same configuration.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.examination.advice.choice import (
    FEWEST_STARTS,
    NEAR_THE_BEST,
    choose_baseline,
    contenders,
    eligible_names,
    interval_over_starts,
    round_ratios,
    start_ratios,
)
from layoutdoctor.recording.recording import contradicts_call
from layoutdoctor.workers.launcher import LostError
from layoutdoctor.workers.processes import busy_seconds, stop_all

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.worker import Start, Worker

_FIRST = (BASELINE, "inductor-channels-last-freezing", "inductor-freezing", "inductor-channels-last", "eager")
"""
Configurations that are compiled first, so that the first table is likely to have the fastest one.

For 17 networks in inference, the second name was the fastest nine times, and within 3 % of the fastest three times.
"""
ROUNDS_OF_ALL = 7
FEWEST_ROUNDS = 5
ROUNDS_TO_JUDGE = 3
MOST_ROUNDS = 25
ROUNDS_OF_A_START = 9
USUAL_STARTS = 5
MOST_STARTS = 8
_ROUNDS_SECONDS = 6.0
_START_SECONDS = 3.0
_TURN_SECONDS = 0.03
_MOST_CALLS = 8
_PATIENCE, _MOST_PATIENCE = 1.5, 3.0
_NARROW = 1.06
"""An interval over starts is narrow if its ends have at most this ratio: 3 % on each side. No more starts are made."""
_WIDE = 1.10
"""An interval over starts is wide if its ends have a larger ratio than this. More starts than usual are made."""
_HOPELESS = 2.0
"""After three rounds, a configuration that takes over this many times as long as the fastest is timed no further."""
_DISTURBED = 1.3
_ROUNDS_TO_COMPARE = 4
_MOST_AGAIN = 5
"""Largest number of disturbed rounds that are taken again."""
_MOST_PROFILES, _FEWEST_PROFILES, _MOST_PROFILES_AGAIN = 5, 3, 2
_PROFILES_SECONDS = 1.5
"""After this profiling time, a configuration gets only the iterations up to ``_FEWEST_PROFILES``."""
_LONG_PROFILE_SECONDS = 4.0
"""After this profiling time, a configuration gets no further iteration, however few it has."""


def compile_side_by_side(
    workers: Sequence[Worker],
    earlier: Sequence[Worker],
    on_done: Callable[[Sequence[Worker]], object],
    *,
    most: int | None = None,
    has_formats: bool = True,
) -> None:
    """
    Compiles configurations side by side.

    Args:
        earlier: Workers that have compiled before; a new worker may turn out to equal one of them.
        on_done: Function that is called with the workers that still compile, whenever a worker has compiled, has
            failed, is skipped or equals another worker.
        most: Largest number of workers that compile at once; None for the number of cores and one more.
        has_formats: Whether the model has tensors that can be channels-last. Without such tensors, configurations that
            ask for a memory format come last, as each will equal a configuration that demands less.
    """
    most = most or (os.cpu_count() or 1) + 1
    waiting = sorted(
        workers,
        key=lambda worker: (
            not has_formats and worker.configuration.asks_for_format,
            _FIRST.index(worker.name) if worker.name in _FIRST else len(_FIRST),
        ),
    )
    running: list[Worker] = []
    begun = [*earlier]
    while waiting or running:
        while waiting and len(running) < most:
            worker = waiting.pop(0)
            worker.begin()
            if worker.process is None:
                on_done(running)
                continue
            running.append(worker)
            begun.append(worker)
        for worker in _that_say_something(running):
            if worker not in running or not worker.hear(begun):
                continue
            running.remove(worker)
            on_done(running)
        for worker in [one for one in running if one.process is None]:  # found to be the same as another worker
            running.remove(worker)
            on_done(running)


def _that_say_something(running: Sequence[Worker]) -> list[Worker]:
    """Waits until a worker has sent a message or has exceeded its time limit. Returns all such workers."""
    if not running:  # all workers that were begun are skipped
        return []
    with selectors.DefaultSelector() as selector:
        for worker in running:
            assert worker.process is not None
            selector.register(worker.process.channel.fileno(), selectors.EVENT_READ, worker)
        limits = [left for worker in running if (left := worker.seconds_left) is not None]
        ready = [key.data for key, _ in selector.select(min(limits, default=None))]
    overdue = [worker for worker in running if worker not in ready and (worker.seconds_left or 1.0) <= 1e-3]
    return [*ready, *overdue]


@contextlib.contextmanager
def stopped(running: Sequence[Worker]) -> Iterator[None]:
    """A block in which workers that compile are stopped, so that they do not disturb the timing."""
    pids = [worker.process.pid for worker in running if worker.process is not None]
    stop_all(pids)
    begin = time.monotonic()
    try:
        yield
    finally:
        stop_all(pids, goes_on=True)
        for worker in running:
            worker.postpone(time.monotonic() - begin)


class LoadMeter:
    """Measures the number of cores that other programs use while configurations are timed."""

    def __init__(self) -> None:
        self._others = self._seconds = 0.0

    @contextlib.contextmanager
    def during(self, starts: Sequence[Start]) -> Iterator[None]:
        """A block in which these starts are timed; all other processor time counts as used by other programs."""
        before, own, begin = busy_seconds(), sum(start.cpu_seconds for start in starts), time.monotonic()
        try:
            yield
        finally:
            after, seconds = busy_seconds(), time.monotonic() - begin
            if before is not None and after is not None:
                self._others += max(0.0, after - before - (sum(start.cpu_seconds for start in starts) - own))
                self._seconds += seconds

    @property
    def other_cores(self) -> float | None:
        """Average number of cores that other programs used; None if not known, or if timing took at most a second."""
        return round(self._others / self._seconds, 2) if self._seconds > 1.0 else None


def calls_per_turn(workers: Iterable[Worker]) -> int:
    """Returns the number of calls that take the fastest configuration about 30 ms, from 1 to 8."""
    fastest = min((worker.start.call_seconds for worker in workers if worker.start is not None), default=1.0)
    return max(1, min(_MOST_CALLS, round(_TURN_SECONDS / max(fastest, 1e-6))))


def take_rounds(
    workers: Sequence[Worker],
    baseline: Worker,
    limit_seconds: Seconds,
    meter: LoadMeter,
    on_round: Callable[[int], object] = lambda number: None,
) -> None:
    """
    Times configurations in turns: seven rounds of all, then more rounds of configurations that may be the fastest.

    A configuration that is far too slow is left out after three rounds. Every second round runs in reverse order, and
    after each two rounds the order is rotated by one. Up to five rounds that another program disturbed are taken again.

    Args:
        workers: Workers that are ready, the baseline among them.
        limit_seconds: Time limit, which takes effect after five rounds. After half of it, only configurations that may
            be the fastest are timed. After all of it, no round begins. After seven rounds, the limit is at most six
            seconds.
        on_round: Function that is called with the number of rounds so far.
    """
    calls = calls_per_turn(workers)
    for worker in workers:
        worker.calls = calls
        if worker is not baseline and worker.first_round + len(worker.rounds) != len(baseline.rounds):
            # This worker missed rounds of the baseline, so its earlier rounds and its next round are not in a row.
            worker.rounds, worker.first_round = [], len(baseline.rounds)
    offset = len(baseline.rounds)
    begin = time.monotonic()
    taking, left_again = list(workers), _MOST_AGAIN
    with meter.during([worker.start for worker in workers if worker.start is not None]):
        for turn in range(MOST_ROUNDS + _MOST_AGAIN):
            seconds, number = time.monotonic() - begin, len(baseline.rounds) - offset
            if number >= MOST_ROUNDS or (number >= FEWEST_ROUNDS and seconds > limit_seconds):
                break
            if number >= ROUNDS_TO_JUDGE:
                taking = _hopeful(taking, baseline, offset)
            if number >= ROUNDS_OF_ALL or (number >= FEWEST_ROUNDS and seconds > limit_seconds / 2):
                taking = _near_the_best(taking, baseline, offset)
                if len(taking) < 2 or (number >= ROUNDS_OF_ALL and seconds > _ROUNDS_SECONDS):
                    break
            first = turn // 2 % len(taking)
            order = [*taking[first:], *taking[:first]]
            for worker in order[::-1] if turn % 2 else order:
                worker.turn()
            if baseline not in (taking := [worker for worker in taking if worker.start is not None]):
                break
            disturbed = disturbed_rounds([one.rounds[max(offset - one.first_round, 0) :] for one in taking])
            for index in disturbed[::-1][:left_again]:
                _drop_round(workers, offset + index)
                left_again -= 1
            on_round(len(baseline.rounds) - offset)


def disturbed_rounds(times: Sequence[Sequence[Seconds]]) -> list[int]:
    """
    Finds rounds in which another program slowed only some configurations, so that the ratios of these rounds are wrong.

    Args:
        times: Times of the rounds of each configuration; all configurations have the same number of rounds.

    Returns:
        Indices of the disturbed rounds; empty with fewer than ``_ROUNDS_TO_COMPARE`` rounds. The slowdown of a
        configuration in a round is its time divided by its median over the rounds. In a disturbed round, the largest
        slowdown is more than ``_DISTURBED`` times the smallest.
    """
    if len(times[0]) < _ROUNDS_TO_COMPARE:
        return []
    slowdowns = [[seconds / statistics.median(own) for seconds in own] for own in times]
    return [number for number, of in enumerate(zip(*slowdowns, strict=True)) if max(of) > _DISTURBED * min(of)]


def _drop_round(workers: Sequence[Worker], index: int) -> None:
    """Removes a round from all workers that were timed in it; ``index`` counts the baseline's rounds."""
    for worker in workers:
        if worker.first_round > index:
            worker.first_round -= 1
        elif index - worker.first_round < len(worker.rounds):
            del worker.rounds[index - worker.first_round]


def take_profiles(workers: Sequence[Worker], on_round: Callable[[float], object] = lambda share: None) -> None:
    """
    Records the kernels of configurations in turns, and then measures the peak memory of each.

    A configuration with further starts gets five iterations, any other configuration three; both get fewer if they take
    long. An iteration whose kernels seem to take longer than the call does not count. Up to two such iterations are
    replaced.

    Args:
        workers: Any workers; workers that were profiled already are left out.
        on_round: Function that is called with the share of the work that is done.
    """
    new = [worker for worker in workers if worker.start is not None and not worker.was_profiled]
    taking = list(new)
    spent = dict.fromkeys(new, 0.0)
    for number in range(_MOST_PROFILES + _MOST_PROFILES_AGAIN):
        for worker in list(taking):
            begin = time.monotonic()
            goes_on = worker.profile()
            spent[worker] += time.monotonic() - begin
            count = sum(not contradicts_call(one) for one in worker.iterations)
            is_enough = spent[worker] > (_PROFILES_SECONDS if number + 1 >= _FEWEST_PROFILES else _LONG_PROFILE_SECONDS)
            wanted = _MOST_PROFILES if worker.starts else _FEWEST_PROFILES
            if not goes_on or is_enough or count >= wanted or number + 1 >= wanted + _MOST_PROFILES_AGAIN:
                taking.remove(worker)
        on_round(min(1.0, (number + 1) / _MOST_PROFILES))
        if not taking:
            break
    for worker in new:
        worker.iterations = tuple(one for one in worker.iterations if not contradicts_call(one)) or worker.iterations
        worker.measure_memory()


def medians_of(workers: Iterable[Worker], baseline: Worker, offset: int = 0) -> dict[str, float]:
    """
    Returns the median ratio to the baseline of every other configuration that has rounds, by name.

    The configuration with the most rounds is compared with the baseline. A configuration with fewer rounds is compared
    with this configuration over their common rounds, and the two ratios are multiplied. Otherwise, a disturbance in a
    round that only one of the two has would change only one of their ratios.

    Args:
        offset: Number of the baseline's first rounds that do not count.
    """
    found = {one: ratio for one in workers if one is not baseline and (ratio := _ratio(one, baseline, offset))}
    if not found:
        return {}
    counts = {one: len(one.rounds) - max(offset - one.first_round, 0) for one in found}
    longest = max(found, key=lambda one: (counts[one], found[one]))
    for one in found:
        if counts[one] < counts[longest] and (beside := _ratio(one, longest, offset)):
            found[one] = found[longest] * beside
    return {one.name: ratio for one, ratio in found.items()}


def _ratio(one: Worker, other: Worker, offset: int) -> float | None:
    """Returns the median ratio of ``other``'s time to ``one``'s time over common rounds; None without common rounds."""
    first = max(one.first_round, other.first_round, offset)
    ratios = round_ratios(other.rounds[first - other.first_round :], one.rounds[first - one.first_round :])
    return statistics.median(ratios) if ratios else None


def _hopeful(workers: Sequence[Worker], baseline: Worker, offset: int) -> list[Worker]:
    medians = _right_medians(workers, baseline, offset)
    best = max(medians.values())
    return [one for one in workers if one is baseline or medians.get(one.name, best) * _HOPELESS >= best]


def _near_the_best(workers: Sequence[Worker], baseline: Worker, offset: int) -> list[Worker]:
    medians = _right_medians(workers, baseline, offset)
    best = max(medians.values())
    thawed = [one for one in workers if not one.configuration.freezes]
    free = max((medians[one.name] for one in thawed if one.name in medians), default=best)
    return [
        one
        for one in workers
        if one is baseline
        or medians.get(one.name, 0.0) * NEAR_THE_BEST >= best
        or (one in thawed and medians.get(one.name, 0.0) * 1.05 >= free)
    ]


def _right_medians(workers: Sequence[Worker], baseline: Worker, offset: int) -> dict[str, float]:
    """Returns the ratios of the baseline and of the configurations that may be recommended, by name."""
    eligible = eligible_names(worker.trial for worker in workers)
    medians = medians_of(workers, baseline, offset)
    return {baseline.name: 1.0, **{name: of for name, of in medians.items() if name in eligible}}


def baseline_of(workers: Sequence[Worker]) -> Worker | None:
    """Returns the worker that is the baseline of all ratios; None if no worker can be timed."""
    ready = {worker.name: worker for worker in workers if worker.is_ok and worker.start is not None}
    name = choose_baseline((worker.configuration for worker in workers), ready)
    return None if name is None else ready[name]


def contenders_of(workers: Sequence[Worker], baseline: Worker) -> list[Worker]:
    """Returns the workers that ``contenders`` chooses to be timed in further starts, the fastest first."""
    eligible = eligible_names(worker.trial for worker in workers)
    medians = {name: of for name, of in medians_of(workers, baseline).items() if name in eligible}
    by_name = {worker.name: worker for worker in workers}
    configurations = {worker.name: worker.configuration for worker in workers}
    return [by_name[name] for name in contenders(medians, configurations)]


def take_starts(
    workers: Sequence[Worker],
    baseline: Worker,
    limit_seconds: Seconds,
    meter: LoadMeter,
    on_start: Callable[[int], object] = lambda number: None,
    *,
    at_once: int = 1,
) -> None:
    """
    Starts contenders and baseline again, up to eight times, and times each start in up to nine rounds.

    Three starts are enough if all intervals are narrow. More than five are made only while an interval is wide. If one
    process of a start fails, the start does not count for any configuration.

    Args:
        workers: The contenders. All get the same number of starts; other configurations are not started.
        limit_seconds: Time limit. After 1.5 times this time, a fourth or later start begins only if an interval is
            wide; after 3 times this time, no start begins.
        on_start: Function that is called with the number of the baseline's starts so far.
        at_once: Number of starts of each contender that may get ready side by side before the first one is timed.
    """
    begin = time.monotonic()
    waiting: list[list[Start]] = []
    earlier = len(baseline.starts)
    for worker in workers:
        worker.starts += [()] * (earlier - len(worker.starts))
    try:
        for number in range(MOST_STARTS):
            seconds, count = time.monotonic() - begin, len(baseline.starts) - earlier
            width = _widest(workers, baseline) if count >= FEWEST_STARTS else math.inf
            is_wide = width > _WIDE
            if width <= _NARROW or (count >= USUAL_STARTS and not is_wide):
                break
            patience = _MOST_PATIENCE if number < FEWEST_STARTS or is_wide else _PATIENCE
            if not waiting and seconds > patience * limit_seconds:
                break
            if not waiting:
                new = max(min(at_once, FEWEST_STARTS - number), 1)
                waiting = [begin_starts([baseline, *workers]) for _ in range(new)]
            rounds = time_starts(waiting.pop(0), baseline.calls, meter)
            if not rounds:
                continue
            for worker, start in zip((baseline, *workers), rounds, strict=True):
                worker.starts.append(start)
            on_start(len(baseline.starts))
    finally:
        for starts in waiting:
            _end(starts)


def _widest(workers: Sequence[Worker], baseline: Worker) -> float:
    """Returns the largest ratio of upper to lower end among the intervals of the contenders."""
    ratios = [start_ratios(baseline.starts, worker.starts) for worker in workers]
    widths = []
    for number, own in enumerate(ratios):
        low, _, high = interval_over_starts(own, [*ratios[:number], *ratios[number + 1 :]])
        widths.append(high / low)
    return max(widths)


def begin_starts(workers: Sequence[Worker]) -> list[Start]:
    """
    Begins a further start of each worker. The starts get ready one by one if one is a fork or chooses kernels by time.

    Returns:
        The starts, in the order of the workers; empty if one of them failed.
    """
    starts: list[Start] = []
    one_by_one = any(worker.forks or worker.chooses_by_time for worker in workers)
    try:
        for worker in workers:
            starts.append(worker.further_start())
            starts[-1].begin_to_warm_up()
            if one_by_one:
                starts[-1].wait_until_warm()
    except (LostError, LayoutDoctorError):
        _end(starts)
        return []
    return starts


def time_starts(starts: Sequence[Start], calls: int, meter: LoadMeter) -> list[tuple[Seconds, ...]]:
    """
    Times starts in rounds, and ends them.

    Returns:
        The times of the rounds of each start; empty without starts, or if one of them failed.
    """
    if not starts:
        return []
    try:
        for start in starts:
            start.wait_until_warm()
        times: list[list[Seconds]] = [[] for _ in starts]
        begin, left_again = time.monotonic(), _MOST_AGAIN
        with meter.during(starts):
            for turn in range(ROUNDS_OF_A_START + _MOST_AGAIN):
                number = len(times[0])
                is_long = number >= ROUNDS_TO_JUDGE and time.monotonic() - begin > _START_SECONDS
                if number >= ROUNDS_OF_A_START or is_long:
                    break
                order = list(range(len(starts)))
                for index in order if turn % 2 else order[::-1]:
                    times[index].append(starts[index].turn(calls))
                for disturbed in disturbed_rounds(times)[::-1][:left_again]:
                    for own in times:
                        del own[disturbed]
                    left_again -= 1
        return [tuple(seconds) for seconds in times]
    except (LostError, LayoutDoctorError):  # for example, the subject cannot be loaded again
        return []
    finally:
        _end(starts)


def _end(starts: Iterable[Start]) -> None:
    for start in starts:
        start.process.end()
