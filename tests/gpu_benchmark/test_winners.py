"""Whether the counts of ``winners`` are right, whether a planted slowdown is known, and what ``overhead`` runs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import false_winner
import overhead
import pytest
import torch
import winners

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

TRUTHS = {"same object": 1.0, "one call more": 20 / 21}


def an_outcome(seconds: Mapping[str, float], noise: float = 0.002, number: int = 0) -> false_winner.Outcome:
    """A diagnosis of entries that take so long, by a clock that only has noise."""
    generator = random.Random(number)
    steps: dict[str, Callable[[], None]] = {}
    taken: list[float] = []
    for name, value in seconds.items():
        steps[name] = lambda value=value: taken.append(value * (1 + generator.uniform(0, noise)))

    def timer(step: Callable[[], None], calls: int) -> tuple[float, ...]:
        taken.clear()
        for _ in range(calls):
            step()
        return tuple(taken)

    return false_winner.judge_steps(steps, lambda: TRUTHS, timer, number, budget_seconds=0.05)


def test_a_planted_slowdown_is_called_slower_and_the_same_step_is_not() -> None:
    equal_and_slower = {false_winner.BASELINE: 2e-3, "same object": 2e-3, "one call more": 2.1e-3}
    outcomes = [an_outcome(equal_and_slower, number=number) for number in range(4)]

    result = winners.result_of(outcomes)

    assert json.loads(json.dumps(result)) == result
    assert (result["same_object_faster"], result["same_object_slower"], result["same_object_no_difference"]) == (
        0,
        0,
        4,
    )
    assert (result["one_call_more_faster"], result["one_call_more_slower"]) == (0, 4)
    assert result["one_call_more_true_ratio"] == pytest.approx(0.952, abs=1e-3)
    assert result["one_call_more_covered"] == 4
    assert len(result["one_call_more_intervals"]) == 4
    assert result["step_seconds"] == pytest.approx(2e-3, rel=0.01)


def test_a_slowdown_that_is_none_is_seen_as_none_and_misses_its_truth() -> None:
    result = winners.result_of(
        [an_outcome({false_winner.BASELINE: 2e-3, "same object": 1.6e-3, "one call more": 2e-3})]
    )

    assert result["same_object_faster"] == 1
    assert result["one_call_more_no_difference"] == 1
    assert result["same_object_covered"] == result["one_call_more_covered"] == 0


class FakeEvent:
    """An event on a clock that only the fake device moves."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at - self.at


def test_the_true_ratio_of_a_wait_is_measured_in_the_calls_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = iter([2.0, 2.0, 4.0])

    def step() -> None:
        FakeEvent.now += next(spans)

    def sleep(cycles: int) -> None:
        FakeEvent.now += cycles / 1000

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    waiting = winners.Waiting(step, 100)
    for _ in range(3):
        waiting()

    assert waiting.true_ratio() == pytest.approx(2.0 / 2.1)


def test_cycles_follow_from_what_a_probe_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def timer(step: Callable[[], None], calls: int) -> tuple[float, ...]:
        took: list[float] = []
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: took.append(cycles / 1e9))
        step()
        return tuple((took or [4e-3]) * calls)

    monkeypatch.setattr(winners, "choose_timer", lambda device: timer)

    assert winners.cycles_for(lambda: None, 0.05) == 200_000  # 5 % of 4 ms at 1 GHz


def test_a_step_calls_its_model_so_often() -> None:
    calls: list[Any] = []

    winners.make_step(calls.append, torch.zeros(1), 21)()

    assert len(calls) == 21


def test_a_process_that_fails_says_why_and_one_that_works_finds_what_this_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lent.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert overhead.run_process([sys.executable, "-c", "import lent, layoutdoctor"]) > 0
    with pytest.raises(RuntimeError, match=r"ended with status 1: .*ZeroDivisionError"):
        overhead.run_process([sys.executable, "-c", "1 / 0"])


def test_the_plain_script_does_what_a_plan_says(tmp_path: Path) -> None:
    model, plan, script = (tmp_path / name for name in ("model.py", "plan.json", "plain.py"))
    model.write_text(
        "import torch\n"
        "def get_inputs():\n    return [torch.randn(1, 3, 8, 8)]\n"
        "class Counting(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        print(x.device.type, x.is_contiguous(), flush=True)\n"
        "        return super().forward(x)\n"
        "def get_model():\n    return Counting(3, 4, 3)\n",
        encoding="utf-8",
    )
    configurations = [("eager", "eager", {}, False), ("eager-channels-last", "eager", {}, True)]
    rounds = {"eager": (2, 3), "eager-channels-last": (1, 1)}
    plan.write_text(json.dumps({"configurations": configurations, "passes": [rounds]}), encoding="utf-8")
    script.write_text(overhead.PLAIN, encoding="utf-8")

    arguments = [str(model), str(plan), "training", "cpu"]
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)

    lines = done.stdout.split("\n")[:-1]
    assert lines.count("cpu True") == 1 + 2 * 3
    assert lines.count("cpu False") == 1 + 1
