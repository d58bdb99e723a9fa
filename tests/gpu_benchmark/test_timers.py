"""Whether timers that see another ratio are found: on times written down by hand."""

from __future__ import annotations

import json
import random

import pytest
import timers

GENERATOR = random.Random(7)
NOISE = [1 + GENERATOR.uniform(0, 0.004) for _ in range(48)]


def rounds(seconds: float) -> list[float]:
    return [seconds * noise for noise in NOISE]


def ratios(**by_timer: float) -> dict[str, dict[str, list[float]]]:
    """Each timer's ratio, with a range of half a per cent to either side."""
    return {timer: {"compiled": [ratio * 0.995, ratio, ratio * 1.005]} for timer, ratio in by_timer.items()}


def test_a_ratio_is_how_many_times_faster_than_the_first_one() -> None:
    times = {"eager": rounds(3e-3), "compiled": rounds(2e-3)}

    (low, median, high) = timers.ratios_of(times, is_paired=True)["compiled"]

    assert low <= median <= high
    assert median == pytest.approx(1.5)


def test_without_rounds_the_range_is_that_of_the_repetitions() -> None:
    times = {"eager": [3.0, 4.0, 3.0], "compiled": [2.0, 2.0, 1.0]}

    assert timers.ratios_of(times, is_paired=False) == {"compiled": [1.5, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("other", "is_disagreeing", "is_opposite"),
    [
        (1.2, False, False),
        (1.21, False, False),
        (1.3, True, False),
        (1.1, True, False),
        (0.9, True, True),
        (1.0, True, False),
    ],
)
def test_a_timer_disagrees_where_its_range_lies_clear_of_the_interval(
    other: float, is_disagreeing: bool, is_opposite: bool
) -> None:
    disagreeing, opposite = timers.compare_timers(ratios(layoutdoctor=1.2, do_bench=other))

    assert bool(disagreeing) is is_disagreeing
    assert bool(opposite) is is_opposite


def test_a_disagreement_names_timer_configuration_and_both_ratios() -> None:
    disagreeing, _ = timers.compare_timers(ratios(layoutdoctor=1.2, do_bench=1.2, graph=1.5))

    assert disagreeing == ["graph, compiled: 1.500 against 1.200"]


def test_a_wide_interval_disagrees_with_nobody() -> None:
    by_timer = ratios(layoutdoctor=1.2, events=1.6)
    by_timer["layoutdoctor"]["compiled"] = [0.7, 1.2, 1.7]

    assert timers.compare_timers(by_timer) == ([], [])


def test_a_result_says_what_is_launching_and_how_far_do_bench_is() -> None:
    times = {
        "layoutdoctor": {"eager": rounds(4e-3), "compiled": rounds(2e-3)},
        "graph": {"eager": rounds(1e-3), "compiled": rounds(2e-3)},
        "do_bench": {"eager": [4.2e-3] * 3, "compiled": [2e-3] * 3},
    }

    result = timers.result_of(times, ["wall: RuntimeError: no clock"])

    assert json.loads(json.dumps(result)) == result
    assert result["baseline"] == "eager"
    assert result["launch_bound_eager"] == pytest.approx(4.0)
    assert result["launch_bound_compiled"] == pytest.approx(1.0)
    assert result["do_bench_over_layoutdoctor_eager"] == pytest.approx(1.05, rel=0.01)
    assert result["disagreeing"] == ["graph, compiled: 0.500 against 2.000", "do_bench, compiled: 2.100 against 2.000"]
    assert result["opposite"] == ["graph, compiled: 0.500 against 2.000"]
    assert result["failures"] == ["wall: RuntimeError: no clock"]
    assert result["rounds"] == 48


def test_blocks_take_turns_and_each_gives_its_median() -> None:
    order: list[str] = []
    seconds = {"eager": 0.004, "compiled": 0.002}
    steps = {name: (lambda name=name: order.append(name)) for name in seconds}

    def block(step: timers.Step, calls: int) -> list[float]:
        step()
        return [seconds[order[-1]]] * (calls - 1) + [1.0] if calls > 2 else [seconds[order[-1]]] * calls

    found = timers.in_blocks(steps, block)

    assert found == {"eager": [0.004] * timers.BLOCKS, "compiled": [0.002] * timers.BLOCKS}
    assert order[2:6] == ["eager", "compiled", "eager", "compiled"]


def test_the_processors_clock_counts_every_call() -> None:
    calls: list[int] = []

    found = timers.wall_block(lambda: calls.append(1), 5)

    assert len(found) == len(calls) == 5
    assert all(seconds >= 0 for seconds in found)
