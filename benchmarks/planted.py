"""
Does the account name what it costs? Causes whose cost is known are planted in one of two configurations.

A small network runs in eager mode, contiguous and channels_last. If its input is contiguous, it does one thing more: it
converts a tensor there and back, runs a slow convolution, sums along strides, or fills fresh memory whose pages the
system has yet to give. ``diagnose()`` compares the two configurations, and its account says what each line costs. A
plain loop then times the contiguous network with and without the planted cause, in turns: the difference is the truth.

    python benchmarks/planted.py --repeats 3
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING

import torch
from tabulate import tabulate
from torch import nn

import layoutdoctor
from layoutdoctor.workers.processes import cores_in_use
from layoutdoctor.workers.settling import keep_memory, short_waits

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIGURATIONS = ("eager", "eager-channels-last")
PAIRS = 40
_SETTLE_CALLS = 5
_CALLS = 3


def convert(y: torch.Tensor, extra: nn.Module) -> torch.Tensor:
    """There and back: two copies."""
    return y.contiguous(memory_format=torch.channels_last).contiguous()


def convolve(y: torch.Tensor, extra: nn.Module) -> torch.Tensor:
    """A convolution of 7 x 7 whose result hardly counts."""
    found: torch.Tensor = extra(y).mean(1, keepdim=True)
    return found


def sum_along_strides(y: torch.Tensor, extra: nn.Module) -> torch.Tensor:
    """Sums over channels of a transposed view."""
    return y.transpose(1, 3).cumsum(3).transpose(1, 3)


def fill_fresh_pages(y: torch.Tensor, extra: nn.Module) -> torch.Tensor:
    """16 MiB that the system gives page by page."""
    memory = mmap.mmap(-1, 16 * 2**20)
    torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
    return y


PLANTS: dict[str, Callable[[torch.Tensor, nn.Module], torch.Tensor]] = {
    "conversion": convert,
    "slow convolution": convolve,
    "strided sum": sum_along_strides,
    "page faults": fill_fresh_pages,
}


BESIDE_ITS_LINES = {"slow convolution": ("not_aligned",), "page faults": ("between_kernels",)}
"""Rows that a plant has beside those of its lines: a call that one side lacks, and memory that Python gives back."""


class Network(nn.Module):
    """Two convolutions, and between them the planted cause if the input is contiguous."""

    def __init__(self, plant: str | None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.extra = nn.Conv2d(32, 8, 7, padding=3)
        self.plant = plant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if self.plant is not None and x.is_contiguous():
            y = y + PLANTS[self.plant](y, self.extra) * 1e-3
        return self.second(y)


def account_of(plant: str, images: torch.Tensor) -> tuple[float, float]:
    """
    Seconds of the rows of the planted lines, and the part of the difference that no row explains.

    Raises:
        RuntimeError: There is no account of the two.
    """
    diagnosis = layoutdoctor.diagnose(Network(plant).eval(), images, configurations=CONFIGURATIONS)
    account = next((one for one in diagnosis.accounts if one.slower == CONFIGURATIONS[0]), None)
    if account is None:
        raise RuntimeError(f"no account of {plant}: {diagnosis!r}")
    lines = {*range(PLANTS[plant].__code__.co_firstlineno, PLANTS[plant].__code__.co_firstlineno + 5)}
    code = Network.forward.__code__
    lines |= {number for _, _, number in code.co_lines() if number is not None and number == code.co_firstlineno + 3}
    kinds = BESIDE_ITS_LINES.get(plant, ())
    rows = [row for row in account.rows if row.kind in kinds or any(place.line in lines for place in row.locations)]
    planted = sum(row.seconds for row in rows)
    difference = account.slower_seconds - account.faster_seconds
    rest = sum(row.seconds for row in account.rows if row.kind in ("outside_kernels", "small"))
    return planted, rest / difference


def true_cost(plant: str, images: torch.Tensor) -> float:
    """Seconds that the planted cause costs: the median difference of calls with and without it, in turns."""
    torch.manual_seed(0)
    models = [Network(plant).eval(), Network(None).eval()]
    differences = []
    with torch.no_grad():
        for number in range(PAIRS + _SETTLE_CALLS):
            seconds = []
            for model in models:
                calls = []
                for _ in range(_CALLS):
                    begin = time.perf_counter()
                    model(images)
                    calls.append(time.perf_counter() - begin)
                seconds.append(min(calls))  # as in a turn of a diagnosis
            if number >= _SETTLE_CALLS:
                differences.append(seconds[0] - seconds[1])
    return statistics.median(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="diagnoses of each planted cause (default: 3)")
    arguments = parser.parse_args()
    keep_memory()  # as in a diagnosis
    images = torch.randn(2, 16, 96, 96)
    rows = []
    for plant in PLANTS:
        for _ in range(arguments.repeats):
            planted, rest = account_of(plant, images)
            truth = true_cost(plant, images)
            rows.append((plant, f"{truth * 1e3:.2f} ms", f"{planted * 1e3:.2f} ms", planted / truth, rest))
            print(*rows[-1], flush=True)
    head = ("planted", "costs", "account says", "over the truth", "of the difference not explained")
    print(tabulate(rows, headers=head, floatfmt=".2f"))


if __name__ == "__main__":
    waits = short_waits(os.environ, cores_in_use)
    if waits:  # read when torch is loaded: begin again with threads that wait as in a diagnosis
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **waits})
    main()
