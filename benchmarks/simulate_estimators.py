"""
Which number of a round, how many calls and how many rounds find a real difference and invent none?

Records once the single calls of one small model under four names, in turns: as it is, the very same object again, a
copy of it, and the same object with each call made 5 % longer by busy waiting. Then asks of every choice what it would
have said of the same calls. That is how the constants of ``layoutdoctor/isolation/rounds.py`` were chosen.

    python benchmarks/simulate_estimators.py --repeats 20
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from false_winner import SLOWDOWN, busy_process
from tabulate import tabulate
from torch import nn

from layoutdoctor.examination.ratios import COVERAGE, RESOLUTION, family_coverage, paired_ratio
from layoutdoctor.measure.timing import cpu_timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.records import RatioInterval

RECORDED_ROUNDS = 60
RECORDED_CALLS = 12
UNTIMED_CALLS = (0, 1)
CALLS = (1, 2, 4, 8, 11)
ROUNDS = (15, 30, 60)
BASELINE = "model"
TRUE_RATIOS = {"same object": 1.0, "copy": 1.0, "5 % slower": 1 / (1 + SLOWDOWN)}
ESTIMATORS = {"minimum": min, "median": statistics.median, "mean": statistics.fmean}

Recording = dict[str, list[tuple[float, ...]]]
"""Seconds of every call, by entry and round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="recordings (default: 20)")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with a child process")
    parser.add_argument("--threads", type=int, help="threads of torch (default: as torch chooses)")
    parser.add_argument("--recordings", type=Path, help="read them here if the file exists, else write them")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    recordings = load_or_record(arguments)
    print(tabulate(table(recordings), headers="keys", floatfmt=".3f"))


def load_or_record(arguments: argparse.Namespace) -> list[Recording]:
    if arguments.recordings and arguments.recordings.exists():
        recordings: list[Recording] = json.loads(arguments.recordings.read_text(encoding="utf-8"))
        return recordings
    with busy_process() if arguments.busy else contextlib.nullcontext():
        recordings = [record(seed) for seed in range(arguments.repeats)]
    if arguments.recordings:
        arguments.recordings.write_text(json.dumps(recordings), encoding="utf-8")
    return recordings


def make_steps(seed: int) -> dict[str, Callable[[], None]]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()).eval()
    images = torch.randn(4, 16, 56, 56, generator=generator)
    step = make_step(model, images)
    return {
        BASELINE: step,
        "same object": make_step(model, images),
        "copy": make_step(copy.deepcopy(model), images.clone()),
        "5 % slower": slowed_down(step),
    }


def make_step(model: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            model(images)

    return step


def slowed_down(step: Callable[[], None]) -> Callable[[], None]:
    """The step, then busy waiting for a share of what this very call took: the ratio is exact, busy machine or not."""

    def slow_step() -> None:
        start = time.perf_counter_ns()
        step()
        now = time.perf_counter_ns()
        end = now + SLOWDOWN * (now - start)
        while time.perf_counter_ns() < end:
            pass

    return slow_step


def record(seed: int) -> Recording:
    steps = make_steps(seed)
    generator = random.Random(seed)
    for step in steps.values():
        cpu_timer(step, 5)
    recording: Recording = {name: [] for name in steps}
    for _ in range(RECORDED_ROUNDS):
        for name in generator.sample(list(steps), len(steps)):
            recording[name].append(cpu_timer(steps[name], RECORDED_CALLS))
    return recording


def table(recordings: Sequence[Recording]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for rounds, untimed, calls, estimator in itertools.product(ROUNDS, UNTIMED_CALLS, CALLS, ESTIMATORS):
        if calls == 1 and estimator != "minimum":
            continue  # one call is its own minimum, median and mean
        judged = {
            name: [judge(recording, name, rounds, untimed, calls, estimator) for recording in recordings]
            for name in TRUE_RATIOS
        }
        rows.append(
            {
                "rounds": rounds,
                "untimed": untimed,
                "calls": calls,
                "of a round": estimator,
                "calls in all": rounds * (untimed + calls),
                "false winners": sum(r.verdict == "faster" for ratios in judged.values() for r in ratios),
                "same called slower": sum(r.verdict == "slower" for n in ("same object", "copy") for r in judged[n]),
                "5 % found": sum(r.verdict == "slower" for r in judged["5 % slower"]),
                "covered": sum(r.low <= TRUE_RATIOS[n] <= r.high for n, ratios in judged.items() for r in ratios),
                "of": len(recordings) * len(judged),
                "mean width": statistics.fmean(r.high - r.low for ratios in judged.values() for r in ratios),
            }
        )
    return rows


def judge(recording: Recording, name: str, rounds: int, untimed: int, calls: int, estimator: str) -> RatioInterval:
    baseline, candidate = (
        [ESTIMATORS[estimator](block[untimed : untimed + calls]) for block in recording[entry][:rounds]]
        for entry in (BASELINE, name)
    )
    coverage = family_coverage(COVERAGE, len(TRUE_RATIOS) + 1)
    return paired_ratio(name, baseline, candidate, coverage=coverage, resolution=RESOLUTION)


if __name__ == "__main__":
    main()
