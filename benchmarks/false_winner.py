"""
How often is a winner named where there is none, and how often is a real difference found?

One small model enters many diagnoses under four names: as it is, the very same object again, a copy of it, and the same
object with each call made 5 % longer by busy waiting. So the true ratios are known: 1, 1 (but for where the copy's
memory lies) and 1 / 1.05, whatever else the machine does meanwhile. Prints a table of what was said, how often the
interval covered the truth, how wide it was and what it cost. With ``--busy`` a child process keeps one core busy
throughout.

    python benchmarks/false_winner.py --repeats 100
    python benchmarks/false_winner.py --repeats 100 --busy
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from tabulate import tabulate
from torch import nn

from layoutdoctor.examination.ratios import RESOLUTION, compare
from layoutdoctor.measure.timing import PRECISION, cpu_timer, measure_rounds
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from layoutdoctor.diagnosis.records import RatioInterval
    from layoutdoctor.measure.timing import Timer

SLOWDOWN = 0.05
BASELINE = "model"
TRUE_RATIOS = {"same object": 1.0, "copy": 1.0, "5 % slower": 1 / (1 + SLOWDOWN)}
ESTIMATORS = {"minimum": min, "median": statistics.median, "mean": statistics.fmean}
FASTER_SLOWER_NEITHER = ("faster", "slower", "no measurable difference")


class Outcome(NamedTuple):
    """One diagnosis: its ratios, the true ones by entry, how many rounds it took, and how long."""

    ratios: tuple[RatioInterval, ...]
    truths: Mapping[str, float]
    round_count: int
    seconds: float
    step_seconds: float


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with busy_process() if arguments.busy else contextlib.nullcontext():
        outcomes = [diagnose_once(number, arguments) for number in range(arguments.repeats)]
    print(describe(arguments, outcomes))
    print(tabulate(summarize(outcomes), headers="keys", floatfmt=".3f"))
    if arguments.output:
        arguments.output.write_text(json.dumps(as_json(arguments, outcomes), indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100, help="diagnoses (default: 100)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds per diagnosis (default: 20)")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with a child process")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="minimum", help="what makes one number of a round")
    parser.add_argument("--resolution", type=float, default=RESOLUTION, help=f"(default: {RESOLUTION})")
    parser.add_argument("--precision", type=float, default=PRECISION, help=f"(default: {PRECISION})")
    parser.add_argument("--threads", type=int, help="threads of torch (default: as torch chooses)")
    parser.add_argument("--output", type=Path, help="write every interval to this JSON file")
    return parser.parse_args()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def diagnose_once(number: int, arguments: argparse.Namespace) -> Outcome:
    return judge_steps(
        make_steps(number),
        lambda: TRUE_RATIOS,
        cpu_timer,
        number,
        budget_seconds=arguments.budget,
        precision=arguments.precision,
        estimator=ESTIMATORS[arguments.estimator],
        resolution=arguments.resolution,
    )


def judge_steps(
    steps: Mapping[str, Callable[[], None]],
    truths: Callable[[], Mapping[str, float]],
    timer: Timer,
    number: int,
    *,
    budget_seconds: float,
    precision: float = PRECISION,
    estimator: Callable[[tuple[float, ...]], float] = min,
    resolution: float = RESOLUTION,
) -> Outcome:
    """
    Measures the entries as a diagnosis does, and says what it would say of them.

    Args:
        steps: The entries, ``BASELINE`` among them.
        truths: The true ratios of the other ones, asked for after the measuring.
        timer: What times a block of calls.
        number: Which diagnosis it is; for the order of turns.
        budget_seconds: For the rounds.
        precision: Relative width at which an interval is narrow.
        estimator: What makes one number of a round's calls.
        resolution: Smallest relative difference that is called one.

    Raises:
        RuntimeError: An entry could not be timed.
    """
    start = time.perf_counter()
    times = measure_rounds(
        steps,
        baseline=BASELINE,
        budget_seconds=budget_seconds,
        timer=timer,
        precision=precision,
        estimator=estimator,
        seed=number,
    )
    comparison = compare({name: entry.round_seconds for name, entry in times.items()}, BASELINE, resolution=resolution)
    if comparison is None or len(comparison.ratios) != len(steps) - 1:
        raise RuntimeError(f"cannot judge diagnosis {number}: {[entry.failure for entry in times.values()]}")
    return Outcome(
        comparison.ratios,
        truths(),
        comparison.round_count or 0,
        time.perf_counter() - start,
        statistics.median(times[BASELINE].round_seconds),
    )


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


def describe(arguments: argparse.Namespace, outcomes: list[Outcome]) -> str:
    return (
        f"{len(outcomes)} diagnoses, {'busy' if arguments.busy else 'quiet'}, {torch.get_num_threads()} threads, "
        f"{arguments.estimator} of a round, resolution {arguments.resolution:g}; "
        f"a step takes {format_seconds(statistics.median(o.step_seconds for o in outcomes))}, "
        f"a diagnosis {format_seconds(statistics.fmean(o.seconds for o in outcomes))} "
        f"and {statistics.median(o.round_count for o in outcomes):g} rounds"
    )


def summarize(outcomes: list[Outcome]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in outcomes[0].truths:
        ratios = [next(ratio for ratio in outcome.ratios if ratio.name == name) for outcome in outcomes]
        truths = [outcome.truths[name] for outcome in outcomes]
        row: dict[str, object] = {"entry": name, "true ratio": statistics.median(truths)}
        for verdict in FASTER_SLOWER_NEITHER:
            row[verdict] = sum(ratio.verdict == verdict for ratio in ratios)
        row["covered"] = sum(ratio.low <= truth <= ratio.high for ratio, truth in zip(ratios, truths, strict=True))
        row["mean width"] = statistics.fmean(ratio.high - ratio.low for ratio in ratios)
        row["lowest median"] = min(ratio.median for ratio in ratios)
        row["highest median"] = max(ratio.median for ratio in ratios)
        rows.append(row)
    return rows


def as_json(arguments: argparse.Namespace, outcomes: list[Outcome]) -> dict[str, object]:
    return {
        "arguments": {name: value for name, value in vars(arguments).items() if name != "output"},
        "torch": torch.__version__,
        "thread_count": torch.get_num_threads(),
        "true_ratios": TRUE_RATIOS,
        "diagnoses": [
            {
                "round_count": outcome.round_count,
                "seconds": outcome.seconds,
                "step_seconds": outcome.step_seconds,
                "intervals": {r.name: [r.low, r.median, r.high, r.verdict] for r in outcome.ratios},
            }
            for outcome in outcomes
        ],
    }


if __name__ == "__main__":
    main()
