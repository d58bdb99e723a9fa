"""
How often is a winner named where there is none, and how often is a real difference found?

Two small models go through ``diagnose()`` as users call it, without a budget, under two configurations that differ in
nothing that costs time: the operations run over all elements in the order in which they lie, contiguous or
channels_last. The first model does the same under both; the second waits 5 % of what each call took where its input
comes channels_last. So the true ratios are 1 and 1 / 1.05, whatever else the machine does. Prints a table of what was
said, how often the interval covered the truth, how wide it was, what was *verified*, and what it cost. ``--busy``
keeps so many cores busy throughout.

    python benchmarks/false_winner.py --repeats 100
    python benchmarks/false_winner.py --repeats 100 --busy 1
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from tabulate import tabulate
from torch import nn

import layoutdoctor
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.answer import Ratio

SLOWDOWN = 0.05
CONFIGURATIONS = ("eager", "eager-channels-last")
TRUE_RATIOS = {"the same": 1.0, "5 % slower": 1 / (1 + SLOWDOWN)}
WORDS = ("faster", "slower", "equal", "inconclusive")


class Outcome(NamedTuple):
    """One diagnosis of one model: the ratio of the two configurations, what was recommended, and what it took."""

    ratio: Ratio
    is_verified: bool
    other_cores: float | None
    seconds: float


class Elements(nn.Module):
    """Reads and writes every element a few times; a convolution of next to nothing makes the two configurations two."""

    def __init__(self, slowdown: float) -> None:
        super().__init__()
        self.slowdown = slowdown
        self.mask = nn.Parameter(torch.ones(1, 16, 1, 1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes images, gives as many."""
        start = time.perf_counter_ns()
        y = x + torch.conv2d(x[:1, :, :1, :1].double(), self.mask).sum()  # in float64, so that no thread is waited for
        for _ in range(4):
            y = torch.relu(y * 1.01 + 0.5)
        if self.slowdown and not x.is_contiguous():
            now = time.perf_counter_ns()
            end = now + self.slowdown * (now - start)
            while time.perf_counter_ns() < end:
                pass
        return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100, help="diagnoses of each model (default: 100)")
    parser.add_argument("--busy", type=int, default=0, help="cores to keep busy with child processes (default: 0)")
    parser.add_argument("--output", type=Path, help="write every interval to this JSON file")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        for _ in range(arguments.busy):
            stack.enter_context(busy_process())
        outcomes: dict[str, list[Outcome]] = {name: [] for name in TRUE_RATIOS}
        for number in range(arguments.repeats):
            for name, found in outcomes.items():
                found.append(diagnose_once(name, number))
                print(f"{name}: {found[-1].ratio.verdict} in {format_seconds(found[-1].seconds)}", flush=True)
                if arguments.output:
                    arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes), indent=1))
    print(describe(arguments, [outcome for found in outcomes.values() for outcome in found]))
    print(tabulate(summarize(outcomes), headers="keys", floatfmt=".3f"))


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def diagnose_once(name: str, number: int) -> Outcome:
    """
    One diagnosis, as a user asks for it.

    Raises:
        RuntimeError: The two configurations could not be compared.
    """
    start = time.perf_counter()
    model = Elements(0.0 if TRUE_RATIOS[name] == 1.0 else SLOWDOWN)
    images = torch.randn(4, 16, 128, 128, generator=torch.Generator().manual_seed(number))
    diagnosis = layoutdoctor.diagnose(model, images, configurations=CONFIGURATIONS)
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    if comparison is None or advice is None:
        raise RuntimeError(f"cannot judge a diagnosis: {[trial.failure for trial in diagnosis.trials]}")
    return Outcome(comparison.ratios[0], advice.verified, comparison.other_cores, time.perf_counter() - start)


def describe(arguments: argparse.Namespace, outcomes: list[Outcome]) -> str:
    others = [outcome.other_cores for outcome in outcomes if outcome.other_cores is not None]
    busy = f"others used {statistics.median(others):.2f} cores" if others else "how busy it was is not known"
    return (
        f"{len(outcomes)} diagnoses, {arguments.busy} cores kept busy, {torch.get_num_threads()} threads; {busy}; "
        f"a diagnosis takes {format_seconds(statistics.fmean(o.seconds for o in outcomes))} "
        f"and {statistics.median(o.ratio.round_count for o in outcomes):g} rounds"
    )


def summarize(outcomes: dict[str, list[Outcome]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, found in outcomes.items():
        truth = TRUE_RATIOS[name]
        row: dict[str, object] = {"model": name, "true ratio": truth}
        for word in WORDS:
            row[word] = sum(outcome.ratio.verdict == word for outcome in found)
        row["verified"] = sum(outcome.is_verified for outcome in found)
        row["covered"] = sum(outcome.ratio.low <= truth <= outcome.ratio.high for outcome in found)
        row["mean width"] = statistics.fmean(outcome.ratio.high - outcome.ratio.low for outcome in found)
        row["lowest median"] = min(outcome.ratio.median for outcome in found)
        row["highest median"] = max(outcome.ratio.median for outcome in found)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
