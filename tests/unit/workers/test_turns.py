"""Rounds and further starts with scripted times: who is timed how often, in which order, and what a failure costs."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
from fake_workers import CRASH, Clock, ScriptedProcess, a_worker

from layoutdoctor.diagnosis.trial import Equivalence
from layoutdoctor.errors import SubjectError
from layoutdoctor.examination.advice.choice import ratio_of
from layoutdoctor.workers import turns
from layoutdoctor.workers.turns import (
    LoadMeter,
    baseline_of,
    begin_starts,
    contenders_of,
    medians_of,
    take_rounds,
    take_starts,
    time_starts,
)
from layoutdoctor.workers.worker import Start

DIFFERENT = Equivalence(status="different")
FOREVER = 1e9


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands still unless a process moves it on; the processors do nothing."""
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    monkeypatch.setattr(turns, "busy_seconds", lambda: None)
    return clock


def counts(*workers: Any) -> list[int]:
    return [len(worker.rounds) for worker in workers]


# ---------------------------------------------------------------------------------------------- rounds
@pytest.mark.parametrize(
    ("times", "rounds"),
    [
        # The best and what is within 12 % of it get 25 rounds, all others 7.
        ({"inductor": 1.0, "eager": 0.8, "a": 0.89, "b": 0.95}, [25, 25, 25, 7]),
        # What takes twice as long as the best is dropped after three.
        ({"inductor": 1.0, "eager": 0.8, "a": 1.5, "b": 1.7}, [25, 25, 7, 3]),
        # The baseline is timed as often as the best.
        ({"inductor": 9.0, "eager": 1.0}, [25, 25]),
        # The best without frozen weights goes on beside a faster frozen one.
        ({"inductor": 1.0, "inductor-freezing": 0.6, "eager": 0.9, "a": 0.93, "b": 0.97}, [25, 25, 25, 25, 7]),
        # A configuration that computes something else does not decide.
        ({"inductor": 1.0, "wrong": 0.1, "a": 0.8, "b": 0.95}, [25, 7, 25, 7]),
        # A baseline alone.
        ({"inductor": 1.0}, [7]),
        ({"inductor-freezing": 1.0}, [7]),
    ],
)
def test_all_get_seven_rounds_and_what_may_be_the_fastest_gets_twenty_five(
    times: dict[str, float], rounds: list[int]
) -> None:
    workers = [a_worker(name, seconds) for name, seconds in times.items()]
    for worker in workers:
        worker.observe(equivalence=DIFFERENT if worker.name == "wrong" else None)
    done: list[int] = []

    take_rounds(workers, workers[0], FOREVER, LoadMeter(), done.append)

    assert counts(*workers) == rounds
    assert done == list(range(1, rounds[0] + 1))
    assert workers[0].rounds == [next(iter(times.values()))] * rounds[0]  # the least of a turn's calls


def test_the_order_rotates_and_every_second_round_goes_backwards() -> None:
    seen: list[str] = []
    baseline, a, b = (a_worker(name, 1.0, seen=seen) for name in ("inductor", "a", "b"))

    take_rounds([baseline, a, b], baseline, FOREVER, LoadMeter())

    rounds = [seen[first : first + 3] for first in range(0, 15, 3)]
    assert rounds == [
        ["inductor", "a", "b"],
        ["b", "a", "inductor"],
        ["a", "b", "inductor"],
        ["inductor", "b", "a"],
        ["b", "inductor", "a"],
    ]


def test_what_fails_in_a_turn_costs_itself_only() -> None:
    baseline, other = a_worker("inductor", 1.0), a_worker("eager", 0.9)
    failing = a_worker("a", [0.5, 0.5, CRASH])
    process: Any = failing.start and failing.start.process

    take_rounds([baseline, other, failing], baseline, FOREVER, LoadMeter())

    assert counts(baseline, other, failing) == [25, 25, 0]
    assert failing.trial.status == "crashed"
    assert failing.trial.failure is not None
    assert failing.trial.failure.message == CRASH.failure.message
    assert (failing.start, process.is_ended) == (None, True)
    assert baseline.is_ok
    assert other.is_ok


def test_a_baseline_that_fails_ends_the_rounds_and_the_next_one_is_the_baseline() -> None:
    baseline, other, third = a_worker("inductor", [1.0] * 4 + [CRASH]), a_worker("eager"), a_worker("a")

    take_rounds([baseline, other, third], baseline, FOREVER, LoadMeter())

    assert baseline.trial.status == "crashed"
    assert counts(other, third) == [5, 5]
    assert baseline_of([baseline, other, third]) is other


def test_no_round_begins_after_the_limit_but_five_are_taken(clock: Clock) -> None:
    def timed(limit_seconds: float) -> list[int]:
        baseline, near, far = (
            a_worker(name, seconds, clock=clock) for name, seconds in (("inductor", 1.0), ("a", 0.9), ("b", 1.2))
        )
        take_rounds([baseline, near, far], baseline, limit_seconds, LoadMeter())
        return counts(baseline, near, far)

    assert timed(0.1) == [5, 5, 5]
    assert timed(19.0) == [7, 7, 5]  # 15.5 s after five rounds: in the second half only those near the best
    assert timed(60.0) == [7, 7, 7]  # after seven rounds what took longer than 8 s ends


def test_a_configuration_that_comes_later_is_compared_over_the_rounds_that_it_shares() -> None:
    baseline = a_worker("inductor", [1.0] * 25 + [2.0] * 25)
    first, later = a_worker("eager", 0.9), a_worker("a", 1.0)
    take_rounds([baseline, first], baseline, FOREVER, LoadMeter())

    take_rounds([baseline, later], baseline, FOREVER, LoadMeter())

    assert later.first_round == 25
    assert counts(baseline, first, later) == [50, 25, 25]
    assert medians_of([first, later], baseline) == pytest.approx({"eager": 1 / 0.9, "a": 2.0})
    assert later.measurement is not None
    assert baseline.measurement is not None
    ratio = ratio_of("a", baseline.measurement, later.measurement)
    assert ratio is not None
    assert (ratio.median, ratio.round_count) == (2.0, 25)


def test_what_has_fewer_rounds_is_compared_with_what_has_most_because_some_rounds_may_have_been_disturbed() -> None:
    baseline = a_worker("inductor", [3.0] * 7 + [1.0] * 23)  # other programs slowed it down, and it alone
    best, dropped = a_worker("a", 0.7), a_worker("eager", 1.25)

    take_rounds([baseline, best, dropped], baseline, FOREVER, LoadMeter())

    assert counts(baseline, best, dropped) == [25, 25, 7]
    assert medians_of([best, dropped], baseline) == pytest.approx({"a": 1 / 0.7, "eager": 1 / 1.25})
    assert contenders_of([baseline, best, dropped], baseline) == [best]


def test_rounds_of_what_was_left_out_meanwhile_are_taken_again() -> None:
    baseline = a_worker("inductor", [1.0] * 25 + [2.0] * 25)
    wrong, right = a_worker("eager", 0.5), a_worker("a", [0.8] * 7 + [1.0] * 25)
    take_rounds([baseline, wrong, right], baseline, FOREVER, LoadMeter())
    assert counts(baseline, right) == [25, 7]

    take_rounds([baseline, right], baseline, FOREVER, LoadMeter())

    assert (right.first_round, right.rounds) == (25, [1.0] * 25)
    assert medians_of([right], baseline) == {"a": 2.0}


def test_calls_of_a_turn_take_30_milliseconds_of_the_fastest_and_all_have_as_many() -> None:
    def of(*call_seconds: float) -> int:
        workers = [a_worker(name, 1.0, call_seconds=seconds) for name, seconds in zip("ab", call_seconds, strict=False)]
        take_rounds(workers, workers[0], 0.0, LoadMeter())
        (calls,) = {worker.calls for worker in workers}
        measurement = workers[-1].measurement
        assert measurement is not None
        assert measurement.calls_per_round == calls
        return calls

    assert [of(1e-6), of(0.003), of(0.01), of(1.0), of(1.0, 0.01)] == [8, 8, 3, 1, 3]


# ---------------------------------------------------------------------------------------------- who is compared
def test_the_baseline_is_the_default_if_it_runs_else_the_first_that_does() -> None:
    default, eager, failed = a_worker("inductor"), a_worker("eager"), a_worker("a", status="failed")

    assert baseline_of([failed, eager, default]) is default
    assert baseline_of([failed, eager]) is eager
    default.start = None
    assert baseline_of([default, failed]) is None


# ---------------------------------------------------------------------------------------------- starts
def test_narrow_intervals_need_three_starts_others_five_and_wide_ones_eight() -> None:
    baseline = a_worker("inductor", again=[1.0] * 16)
    steady, wild = a_worker("a", again=[0.5] * 9), a_worker("b", again=[0.5, 0.6, 0.4, 0.55, 0.45, 0.5, 0.6, 0.4, 0.5])
    uneven = a_worker("c", again=[0.5, 0.48, 0.51, 0.5, 0.49, 0.5])
    done: list[int] = []

    take_starts([steady], baseline, FOREVER, LoadMeter(), done.append)
    assert done == [1, 2, 3]
    assert steady.starts == [(0.5,) * 9] * 3
    assert len(baseline.starts) == 3
    baseline.starts = []
    take_starts([uneven], baseline, FOREVER, LoadMeter())
    assert len(uneven.starts) == len(baseline.starts) == 5
    take_starts([wild], baseline, FOREVER, LoadMeter())
    assert len(wild.starts) == len(baseline.starts) == 13
    assert wild.starts[:5] == [()] * 5  # what was not timed beside it


def test_a_start_that_fails_costs_that_start_for_all_and_ends_its_processes() -> None:
    for failure in ([0.5, CRASH], CRASH, SubjectError("cannot load it again")):
        baseline = a_worker("inductor", again=[1.0] * 5)
        other = a_worker("a", again=[0.5, failure, 0.5, 0.5, 0.5])
        done: list[int] = []

        take_starts([other], baseline, FOREVER, LoadMeter(), done.append)

        assert len(baseline.starts) == len(other.starts) == 3
        assert done == [1, 2, 3]
        assert other.is_ok


def test_after_the_limit_one_start_is_taken_and_a_long_call_has_three_rounds_in_it(clock: Clock) -> None:
    baseline, other = a_worker("inductor", again=[1.0] * 5, clock=clock), a_worker("a", again=[2.5] * 5, clock=clock)

    take_starts([other], baseline, 0.5, LoadMeter())

    assert other.starts == [(2.5, 2.5, 2.5)]


def test_starts_that_load_for_themselves_get_ready_side_by_side_and_those_left_over_are_ended() -> None:
    seen: list[str] = []
    begun: list[Any] = []
    baseline = a_worker("inductor", again=[1.0, 1.0, CRASH, 1.0], seen=seen)
    other = a_worker("a", again=[1.0] * 3, seen=seen)
    for worker in (baseline, other):
        start = worker.further_start
        worker.further_start = lambda start=start, **given: begun.append((len(seen), start(**given))) or begun[-1][1]  # type: ignore[method-assign, func-returns-value]

    take_starts([other], baseline, FOREVER, LoadMeter(), at_once=4)

    assert [turns_before for turns_before, _ in begun] == [0] * 4 + [36, 36]  # the third could not be started
    assert len(baseline.starts) == 3
    assert all(start.process.is_ended for _, start in begun)

    begun.clear()
    baseline.starts, other.starts = [], []
    for worker in (baseline, other):
        worker.further_start = lambda **given: begun.append(Start(ScriptedProcess([1.0] * 9, seen, "x"))) or begun[-1]  # type: ignore[method-assign, func-returns-value, misc, arg-type]
    with pytest.raises(KeyboardInterrupt):
        take_starts([other], baseline, FOREVER, LoadMeter(), mock.Mock(side_effect=KeyboardInterrupt), at_once=3)
    assert len(begun) == 6
    assert all(start.process.is_ended for start in begun)


def test_in_a_start_the_order_turns_with_every_round_and_processes_end() -> None:
    seen: list[str] = []
    ended: list[Any] = []
    workers = [a_worker(name, again=[1.0], seen=seen) for name in ("inductor", "a")]
    for worker in workers:
        start = worker.further_start
        worker.further_start = lambda start=start, **given: ended.append(start(**given)) or ended[-1]  # type: ignore[method-assign, func-returns-value]

    time_starts(begin_starts(workers), 1, LoadMeter())

    name, other = "inductor", "a"
    assert seen[:6] == [other, name, name, other, other, name]
    assert len(seen) == 18
    assert all(start.process.is_ended for start in ended)


# ---------------------------------------------------------------------------------------------- other programs
def test_what_other_programs_use_is_what_is_left_of_the_processors_work(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    busy = itertools.count(0.0, 21.0)  # 21 s of processor time in seven turns of 2 s
    monkeypatch.setattr(turns, "busy_seconds", lambda: next(busy))
    meter, worker = LoadMeter(), a_worker(script=2.0, clock=clock)
    assert meter.other_cores is None

    take_rounds([worker], worker, FOREVER, meter)

    assert meter.other_cores == 0.5  # 21 s less its own 14 s, in 14 s
