from __future__ import annotations

import gc
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from layoutdoctor.errors import UsageError
from layoutdoctor.examination.ratios import COVERAGE, LOOKS, RESOLUTION, compare, open_questions, rounds_needed
from layoutdoctor.isolation.rounds import RoundTimes, measure_rounds, seconds_to_decide, telling, to_measurement
from layoutdoctor.measure.timing import CudaTimer, choose_timer, cpu_timer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Comparison


class Machine:
    """
    A clock and a timer that know how long every call takes, so that nothing here looks at a real clock.

    Attributes:
        calls: Name of the configuration of every call, timed or not, in order.
        blocks: Name and number of calls of every block the timer was asked for.
    """

    def __init__(self, **seconds: float | Callable[[int], float]) -> None:
        self.seconds = seconds
        self.now = 100.0
        self.calls: list[str] = []
        self.counts: Counter[str] = Counter()
        self.blocks: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def step(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.counts[name] += 1
            seconds = self.seconds[name]
            self.now += seconds(self.counts[name]) if callable(seconds) else seconds

        return run

    def steps(self) -> dict[str, Callable[[], None]]:
        return {name: self.step(name) for name in self.seconds}

    def timer(self, step: Callable[[], None], calls: int) -> tuple[float, ...]:
        times = []
        for _ in range(calls):
            start = self.now
            step()
            times.append(self.now - start)
        self.blocks.append((self.calls[-1], calls))
        return tuple(times)

    def measure(self, *, budget: float | None = 1000.0, **options: object) -> dict[str, RoundTimes]:
        return measure_rounds(
            self.steps(),
            **{  # type: ignore[arg-type]
                "baseline": next(iter(self.seconds)),
                "budget_seconds": budget,
                "timer": self.timer,
                "clock": self.clock,
                **options,
            },
        )


def jittery(seconds: float, share: float, seed: int) -> Callable[[int], float]:
    generator = random.Random(seed)
    return lambda _: seconds * (1 + generator.uniform(0, share))


def rounds_of(machine: Machine, warm_up_blocks: int) -> list[tuple[str, ...]]:
    """The order of turns in every round, warm-up left out."""
    names = [name for name, _ in machine.blocks[warm_up_blocks:]]
    size = len(machine.seconds)
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def test_all_take_turns_in_every_round_and_every_other_round_goes_backwards() -> None:
    machine = Machine(a=0.5, b=0.6, c=0.7, d=0.8)
    machine.measure()

    rounds = rounds_of(machine, warm_up_blocks=8)
    assert len(rounds) == 16
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in rounds)
    assert all(there == back[::-1] for there, back in zip(rounds[::2], rounds[1::2], strict=True))
    assert len(set(rounds[::2])) > 1


def test_the_order_comes_from_the_seed_and_leaves_the_global_random_state_alone() -> None:
    def order(seed: int) -> list[tuple[str, int]]:
        machine = Machine(a=0.5, b=0.6, c=0.7, d=0.8)
        machine.measure(seed=seed)
        return machine.blocks

    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert order(1) == order(1)
    assert order(1) != order(2)
    assert random.random() == expected


def test_the_first_calls_are_never_a_measurement() -> None:
    machine = Machine(a=lambda call: 60.0 if call == 1 else 0.5, b=0.5)

    times = machine.measure(budget=50.0)

    assert times["a"].round_seconds == pytest.approx([0.5] * 16)
    assert times["a"].stopped_because == "decided"


def test_a_round_is_the_shortest_of_its_calls_and_all_of_them_are_kept() -> None:
    machine = Machine(a=jittery(3e-3, 0.3, seed=1), b=3e-3)

    times = machine.measure()["a"]

    assert times.calls_per_round == len(times.call_seconds[0]) == 4
    assert times.round_seconds == tuple(min(block) for block in times.call_seconds)
    assert len({seconds for block in times.call_seconds for seconds in block}) > len(times.round_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "calls"),
    [(1e-5, 64), (0.3e-3, 14), (1.5e-3, 4), (30e-3, 4), (0.5, 4)],
    ids=lambda value: str(value),
)
def test_a_block_has_more_calls_the_shorter_they_are(step_seconds: float, calls: int) -> None:
    times = Machine(a=step_seconds, b=step_seconds * 1.1).measure(budget=1e6)

    assert times["a"].calls_per_round == times["b"].calls_per_round == calls


def test_a_small_budget_takes_calls_before_it_takes_rounds_but_a_short_step_is_called_twice_at_least() -> None:
    times = Machine(a=jittery(1.0, 0.3, 1), b=jittery(1.0, 0.3, 2)).measure(budget=64.0)

    assert times["a"].calls_per_round == 1
    assert len(times["a"].round_seconds) >= 24

    assert Machine(a=0.05, b=0.05).measure(budget=0.0)["a"].calls_per_round == 2
    assert Machine(a=0.2, b=0.2).measure(budget=0.0)["a"].calls_per_round == 1


def test_a_verdict_ends_it_before_the_budget_does_and_the_rounds_are_bounded_too() -> None:
    machine = Machine(a=1e-3, b=1.1e-3)
    times = machine.measure(budget=1000.0)

    assert machine.calls.count("a") == sum(calls for name, calls in machine.blocks if name == "a")  # each is timed
    assert {t.stopped_because for t in times.values()} == {"decided"}
    assert len(times["b"].round_seconds) == 16
    assert machine.now < 101.0

    times = Machine(a=jittery(1e-3, 2.0, 1), b=jittery(1e-3, 2.0, 2)).measure(maximum_rounds=20)

    assert [len(t.round_seconds) for t in times.values()] == [20, 20]
    assert times["a"].stopped_because == "budget"


def test_rounds_go_on_until_what_matters_is_decided_and_no_longer() -> None:
    def rounds(factor: float, **options: object) -> int:
        times = Machine(a=jittery(5e-3, 0.1, 1), b=jittery(5e-3 * factor, 0.1, 2), c=6e-3).measure(**options)
        assert times["a"].stopped_because == "decided"
        return len(times["a"].round_seconds)

    assert max(rounds(1.4), rounds(1 / 1.4)) <= 24
    assert rounds(1.02) > 24
    assert rounds(1.02, choices=[{"a"}]) == 16  # nothing is to be told from the baseline


def test_without_a_budget_a_share_of_the_compiling_bounds_it_but_a_verdict_gets_its_rounds() -> None:
    def seconds(compiled: float) -> float:
        machine = Machine(a=jittery(0.1, 2.0, 1), b=jittery(0.1, 2.0, 2))
        machine.measure(budget=None, compile_seconds=compiled, estimator=lambda calls: calls[0], maximum_rounds=9999)
        return machine.now - 100.0

    assert 29.0 < seconds(0.0) < 32.0
    assert 95.0 < seconds(200.0) < 105.0
    assert 175.0 < seconds(2000.0) < 185.0
    times = Machine(a=60.0, b=66.0).measure(budget=None)
    assert [len(t.round_seconds) for t in times.values()] == [11, 11]
    assert compared(times).ratios[0].verdict == "slower"


def test_without_a_budget_they_go_on_for_as_long_again_where_that_decides_it() -> None:
    def measured(share: float, **options: Any) -> tuple[float, str | None]:
        machine = Machine(a=jittery(0.1, share, 1), b=jittery(0.092, share, 2))
        times = machine.measure(estimator=lambda calls: calls[0], **options)
        return machine.now - 100.0, times["a"].stopped_because

    assert measured(0.25, budget=None, compile_seconds=80.0) == (pytest.approx(48.7, abs=0.1), "decided")
    assert measured(0.25, budget=40.0) == (pytest.approx(40.0, abs=2.0), "budget")
    assert measured(2.0, budget=None) == (pytest.approx(30.0, abs=2.0), "budget")


def test_a_wide_interval_goes_on_until_the_budget_is_spent_and_says_what_would_decide() -> None:
    machine = Machine(a=jittery(0.1, 2.0, 1), b=jittery(0.1, 2.0, 2))
    times = machine.measure(budget=20.0, estimator=lambda calls: calls[0])

    assert {t.stopped_because for t in times.values()} == {"budget"}
    assert 15.0 < machine.now - 100.0 < 25.0
    rounds = {name: t.round_seconds for name, t in times.items()}
    needed = seconds_to_decide(times, open_questions(rounds, "a"))
    assert needed is not None
    assert needed > 40.0  # a factor of two has to become 3 %
    assert seconds_to_decide(times, ()) is None


@pytest.mark.parametrize("budget", [0.0, 1e-3])
def test_every_configuration_is_timed_once_whatever_the_budget(budget: float) -> None:
    times = Machine(a=5.0, b=6.0, c=90.0).measure(budget=budget)

    assert [len(t.round_seconds) for t in times.values()] == [1, 1, 1]
    assert {t.calls_per_round for t in times.values()} == {1}
    assert seconds_to_decide(times, open_questions({n: t.round_seconds for n, t in times.items()}, "a")) == 12 * 101.0


def test_a_clearly_slower_configuration_is_dropped_with_and_without_a_budget_but_never_the_baseline() -> None:
    def slower(budget: float | None) -> dict[str, RoundTimes]:
        steps = {"a": jittery(1.0, 0.3, 1), "b": jittery(1.02, 0.3, 2), "c": jittery(5.0, 0.3, 3)}
        return Machine(**steps).measure(budget=budget, compile_seconds=1e3)

    for budget in (500.0, None):
        times = slower(budget)
        assert (times["c"].dropped_after_round, times["c"].stopped_because) == (16, "dropped")
        assert len(times["c"].round_seconds) == 16
        assert len(times["a"].round_seconds) == len(times["b"].round_seconds) > 24
        assert times["a"].dropped_after_round is times["b"].dropped_after_round is None

    machine = Machine(slow=jittery(20.0, 0.3, 1), a=jittery(1.0, 0.3, 2), b=jittery(1.02, 0.3, 3))
    times = machine.measure(baseline="slow", budget=900.0)

    assert times["slow"].dropped_after_round is None
    assert len(times["slow"].round_seconds) == len(times["a"].round_seconds)


def test_the_best_of_every_choice_stays_to_its_end() -> None:
    machine = Machine(a=jittery(1.0, 0.3, 1), frozen=jittery(0.5, 0.3, 2), free=jittery(0.99, 0.3, 3))
    times = machine.measure(budget=500.0, choices=[{"a", "frozen", "free"}, {"a", "free"}])

    assert {t.dropped_after_round for t in times.values()} == {None}
    assert len(times["free"].round_seconds) > 16

    times = machine.measure(budget=500.0, choices=[{"a", "frozen", "free"}])

    assert times["a"].stopped_because == "decided"  # both are slower than the one that is wanted


def fails_after(calls: int) -> Callable[[int], float]:
    def seconds(call: int) -> float:
        if call > calls:
            raise RuntimeError("out of memory\nand more")
        return 0.5

    return seconds


def test_a_configuration_that_raises_is_left_out_and_the_others_go_on() -> None:
    for calls, round_count in ((2 + 4 * 3, 3), (0, 0)):
        times = Machine(a=0.5, b=fails_after(calls), c=0.6).measure()

        assert times["b"].failure == "RuntimeError: out of memory"
        assert (len(times["b"].round_seconds), times["b"].stopped_because) == (round_count, "failed")
        assert len(times["a"].round_seconds) == len(times["c"].round_seconds) == 16
        assert times["a"].failure is None
    with pytest.raises(ValueError, match="cannot record a measurement of no round: RuntimeError: out of memory"):
        to_measurement(times["b"], compile_seconds=None, peak_memory_bytes=None)
    assert Machine(a=fails_after(0)).measure()["a"].stopped_because == "failed"


def test_an_interrupt_is_not_a_failure_of_the_model() -> None:
    with pytest.raises(KeyboardInterrupt):
        Machine(a=0.5, b=mock.Mock(side_effect=KeyboardInterrupt)).measure()


@pytest.mark.parametrize(
    ("is_slow", "seconds", "counting", "left_out", "ratio"),
    [
        (lambda number: False, 1.5, 13, 0, 2.0),
        (lambda number: 4 <= number < 13, 1.5, 11, 9, 2.0),
        (lambda number: number < 7, 1.5, 11, 7, 2.0),
        (lambda number: number % 8 > 0, 1.5, 22, 0, 3.0),  # so it is slow, with quick moments
        (lambda number: 4 <= number < 13, 20.0, 11, 0, 3.0),  # nobody waits so long
    ],
)
def test_rounds_in_which_the_machine_is_slower_for_all_are_left_out(
    is_slow: Callable[[int], bool], seconds: float, counting: int, left_out: int, ratio: float
) -> None:
    rounds = 0

    def done(count: int, *_: int) -> None:
        nonlocal rounds
        rounds = count

    slowed = Machine(
        a=lambda _: seconds * (2 if is_slow(rounds) else 1), b=lambda _: seconds * (2 / 3 if is_slow(rounds) else 0.5)
    )
    times = slowed.measure(budget=None, on_round=done)
    (seen,) = compared(times).ratios

    assert {(len(one.round_seconds), len(one.call_seconds)) for one in times.values()} == {(counting, counting)}
    assert {one.slow_round_count for one in times.values()} == {left_out}
    assert seen.median == pytest.approx(ratio)


def test_progress_is_told_after_every_round() -> None:
    told: list[tuple[int, ...]] = []
    # No call is skipped and the budget allows ten rounds of 2 s.
    times = Machine(a=1.0, b=1.0).measure(budget=20.5, on_round=lambda *numbers: told.append(numbers))

    assert told == [(done, 10, rounds_needed(COVERAGE, 2)) for done in range(1, 11)]
    assert len(times["a"].round_seconds) == 10


def test_a_budget_without_time_for_a_verdict_is_told_after_the_first_round() -> None:
    lines: list[str] = []
    on_round = telling(lines.append)
    for count in (1, 2):
        on_round(count, 10, 13)
    telling(lines.append)(1, 13, 13)

    doing = "timing all configurations in turns: round 1 of up to 10"
    assert lines == [f"{doing}; a verdict takes 13, so give a larger budget"]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_cpu_timer_pauses_garbage_collection_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    ticks = iter([0, 5_000, 10_000, 10_000])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(ticks))
    seen: list[bool] = []
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        times = cpu_timer(lambda: seen.append(gc.isenabled()), 2)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()

    assert times == (pytest.approx(5e-6), 1e-9)  # no call is shorter than a tick of the clock
    assert seen == [False, False]
    with pytest.raises(StopIteration):
        cpu_timer(lambda: None, 1)
    assert gc.isenabled() is was_enabled


class FakeCuda:
    """Writes down what is asked of the GPU; the n-th event pair lies n milliseconds apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        fake = self
        pairs: Iterator[int] = iter(range(1, 100))

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                fake.log.append("event")

            def elapsed_time(self, other: Event) -> float:
                assert fake.log[-1] == "synchronize"
                return float(next(pairs))

        class Cache:
            def zero_(self) -> None:
                fake.log.append("flush")

        class Device:
            def __init__(self, device: str) -> None:
                fake.device = device

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "device", Device)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize"))
        monkeypatch.setattr(torch, "empty", lambda *_, **__: Cache())
        self.device = ""


def test_the_cuda_timer_puts_events_around_every_call_and_synchronises_before_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch)

    times = CudaTimer("cuda:1")(lambda: cuda.log.append("step"), 2)

    turn = ["flush", "event", "step", "event"]
    assert cuda.log == ["step", *turn, *turn, "synchronize"]
    assert times == (pytest.approx(1e-3), pytest.approx(2e-3))
    assert cuda.device == "cuda:1"


def test_the_timer_follows_the_device() -> None:
    assert choose_timer("cpu") is cpu_timer
    timer = choose_timer("cuda:1")
    assert isinstance(timer, CudaTimer)
    assert timer.device == "cuda:1"
    with pytest.raises(UsageError, match="cannot time a model on device 'mps': expected cpu or cuda"):
        choose_timer("mps")


def compared(times: dict[str, RoundTimes], resolution: float = RESOLUTION) -> Comparison:
    rounds = {name: t.round_seconds for name, t in times.items()}
    comparison = compare(rounds, next(iter(rounds)), resolution=resolution)
    assert comparison is not None
    return comparison


def test_rounds_of_before_come_first_and_are_added_to() -> None:
    def again(budget: float, before: dict[str, RoundTimes], **seconds: float | Callable[[int], float]) -> Any:
        kept = {n: to_measurement(t, compile_seconds=None, peak_memory_bytes=None) for n, t in before.items()}
        return Machine(**seconds).measure(budget=budget, before=kept)

    noisy = {"a": jittery(0.5, 0.6, 1), "b": jittery(0.5, 0.6, 2), "slow": jittery(5.0, 0.1, 3)}
    first = Machine(**noisy).measure(budget=120.0)
    second = again(30.0, first, **noisy)

    assert first["slow"].dropped_after_round is not None
    assert second["slow"].round_seconds == first["slow"].round_seconds  # it needs no more
    for name in "ab":
        count = len(first[name].round_seconds)
        assert second[name].round_seconds[:count] == first[name].round_seconds
        assert second[name].call_seconds[:count] == first[name].call_seconds
        assert len(second[name].round_seconds) > count + 5
        assert second[name].stopped_because == first[name].stopped_because == "budget"
        assert {len(calls) for calls in second[name].call_seconds} == {first[name].calls_per_round}
    alone = Machine(a=0.5, b=0.6).measure()
    others = again(1000.0, alone, a=0.5, b=0.6, new=0.7)
    assert len(others["a"].round_seconds) == 16  # what has no earlier rounds cannot go on with them


Noise = Callable[[random.Random], Callable[[int], float]]


def quiet(generator: random.Random) -> Callable[[int], float]:
    return lambda _: math.exp(generator.gauss(0, 0.02))


def chained(generator: random.Random) -> Callable[[int], float]:
    """Each call remembers the one before."""
    state = 0.0

    def seconds(_: int) -> float:
        nonlocal state
        state = 0.9 * state + math.sqrt(0.19) * generator.gauss(0, 1)
        return math.exp(0.1 * state)

    return seconds


def bursts(generator: random.Random) -> Callable[[int], float]:
    """Now and then something else runs for some dozen calls, and each takes up to thrice as long."""
    left = 0

    def seconds(_: int) -> float:
        nonlocal left
        left = left - 1 if left else generator.choice([0] * 40 + [30])
        return math.exp(generator.gauss(0, 0.02)) * (generator.uniform(1, 3) if left else 1)

    return seconds


def states(generator: random.Random) -> Callable[[int], float]:
    """A neighbour on the same processor comes and goes."""
    left, slower = 0, 1.35

    def seconds(_: int) -> float:
        nonlocal left, slower
        if not left:
            left, slower = generator.randint(50, 400), 1.35 / slower
        left -= 1
        return math.exp(generator.gauss(0, 0.02)) * slower

    return seconds


@pytest.mark.parametrize("noise", [quiet, chained, bursts, states])
@pytest.mark.parametrize("compile_seconds", [0.0, 600.0])
def test_stopping_at_what_is_decided_makes_no_false_winner(noise: Noise, compile_seconds: float) -> None:
    def is_wrong(seed: int) -> bool:
        seconds = noise(random.Random(seed))  # of the machine, whoever's turn it is
        machine = Machine(**dict.fromkeys("abcde", lambda call: 0.03 * seconds(call)))
        comparison = compared(machine.measure(seed=seed, budget=None, compile_seconds=compile_seconds))
        return any(ratio.verdict != "no measurable difference" for ratio in comparison.ratios)

    # Five times the same: at most 1 % of such families may have a verdict.
    assert sum(is_wrong(seed) for seed in range(100)) <= 1


@pytest.mark.parametrize("memory", [0.0, 0.4, 0.7])
def test_rounds_of_which_each_remembers_the_one_before_make_no_false_winner(memory: float) -> None:
    def is_wrong(seed: int) -> bool:
        generator = random.Random(seed)
        times: dict[str, list[float]] = {name: [] for name in "abcde"}
        for seconds in times.values():
            value = generator.gauss(0, 1)
            for _ in range(LOOKS[-1]):
                value = memory * value + math.sqrt(1 - memory**2) * generator.gauss(0, 1)
                seconds.append(math.exp(0.03 * value))
        for look in LOOKS:
            rounds = {name: seconds[:look] for name, seconds in times.items()}
            if not open_questions(rounds, "a"):
                break
        comparison = compare(rounds, "a")
        assert comparison is not None
        return len(comparison.fastest) < 5 or any(not ratio.low <= 1 <= ratio.high for ratio in comparison.ratios)

    assert sum(is_wrong(seed) for seed in range(100)) <= 1


def test_intervals_cover_the_truth_wherever_the_rounds_stop() -> None:
    def missed(seed: int) -> bool:
        machine = Machine(
            a=jittery(1.0, 0.04, 3 * seed), b=jittery(1.02, 0.04, 3 * seed + 1), c=jittery(1.0, 0.04, 3 * seed + 2)
        )
        times = machine.measure(seed=seed, maximum_rounds=96, estimator=lambda calls: calls[0])
        truths = {"b": 1 / 1.02, "c": 1.0}
        return any(not ratio.low <= truths[ratio.name] <= ratio.high for ratio in compared(times).ratios)

    # At most 1 % of the families promised; 5 of 150 lie four standard errors above that.
    assert sum(missed(seed) for seed in range(150)) <= 5
