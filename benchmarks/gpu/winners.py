"""
Is a winner named where there is none, is a real slowdown found, and what does a diagnosis cost? On a GPU.

``benchmarks/false_winner.py`` with the device's timer, and ``benchmarks/overhead.py`` with a model on the device.

    python benchmarks/gpu/winners.py OUT [--device cuda|cpu] [--small] [--seconds 480] [--only overhead]

**False winners.** One step enters each diagnosis under five names. A step is twenty calls of a pair of convolutions,
some 2 ms on a large GPU, so that the twentieth part of it is known:

- ``same object``: the very same step; true ratio 1;
- ``copy``: the same of a deep copy; 1, but for where its memory lies;
- ``one call more``: twenty-one calls; 20 / 21 = 0.952 by construction, on whatever device and at whatever clock (the
  first call finds cold caches: if it takes twice as long as the others, the ratio is 0.002 nearer to 1);
- ``5 % slower``: the step, then a kernel that waits (``torch.cuda._sleep``, torch 2.7 to 2.13; nothing public does
  that) for 5 % of the step as measured before the diagnosis. What it really was is measured in the very calls that are
  timed, by an event between step and wait: the true ratio is the median of step / (step + wait) over them.

An item is ten diagnoses. ``<entry>_faster``, ``_slower``, ``_no_difference`` count what was said, ``_covered`` how
often the interval held the true ratio (``_true_ratio``), ``_width`` is the intervals' mean width. Wanted of a hundred:
no difference for ``same object`` and ``copy`` in 95 or more; slower for the other two in 90 or more, faster in none.
``copy`` called different to either side, with intervals that lie clear of 1, would speak of where memory lies; ``same
object`` called different speaks against the timer.

**Overhead.** ``ratio``: wall time of ``python -m layoutdoctor MODEL --device cuda`` over that of a plain script that
compiles and times the same configurations, each in a process of its own with an empty compile cache. Wanted: 1.5 at
most.

On a CPU the entries are those of ``benchmarks/false_winner.py``, timed as they are there.
"""

from __future__ import annotations

import copy
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from parts import Part, parse_arguments
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path.append(str(BENCHMARKS))

import false_winner  # noqa: E402 - lies one folder up
import overhead  # noqa: E402

from layoutdoctor.measure.timing import choose_timer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Step = Callable[[], None]

CALLS = 20
SHARE = 1 / CALLS
DIAGNOSES = 10
CHUNKS = 5
BUDGET_SECONDS, SMALL_BUDGET_SECONDS = 2.0, 0.5
OVERHEAD_BUDGET_SECONDS, SMALL_OVERHEAD_BUDGET_SECONDS = 10.0, 1.0
MODELS = {"conv_bn_relu inference": "conv_bn_relu.py", "conv3d_stack training": "conv3d_stack.py"}
_SHAPE, _SMALL_SHAPE = (64, 64, 56, 56), (2, 64, 14, 14)


def item_names() -> list[str]:
    """Items, the most telling ones first."""
    chunks = [f"false winners {number}" for number in range(1, CHUNKS + 1)]
    models = [f"overhead {name}" for name in MODELS]
    return [*chunks[:2], models[0], *chunks[2:], *models[1:]]


@dataclass
class Waiting:
    """
    A step with a wait of a known share behind it, and how long both took in each call.

    Attributes:
        step: What is slowed down.
        cycles: How long the wait is, in cycles of the device's clock.
        events: Before, between and behind the two, of every call.
    """

    step: Step
    cycles: int
    events: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def __call__(self) -> None:
        """Runs the step, then waits on the device."""
        before, between, behind = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        before.record()
        self.step()
        between.record()
        torch.cuda._sleep(self.cycles)
        behind.record()
        self.events.append((before, between, behind))

    def true_ratio(self) -> float:
        """The median over all calls of the step's time over that of both."""
        torch.cuda.synchronize()
        spans = [(before.elapsed_time(between), before.elapsed_time(behind)) for before, between, behind in self.events]
        return statistics.median(own / both for own, both in spans)


def cycles_for(step: Step, share: float) -> int:
    """
    Cycles of a wait that takes a share of a step.

    Args:
        step: Warm.
        share: Such as 0.05.
    """
    timer = choose_timer("cuda")
    probe = 2_000_000
    waited = statistics.median(timer(lambda: torch.cuda._sleep(probe), 9))
    return max(1, round(probe * share * statistics.median(timer(step, 9)) / waited))


def make_step(model: nn.Module, images: torch.Tensor, calls: int) -> Step:
    """
    So many calls of a model.

    Args:
        model: It.
        images: Its input.
        calls: How many.
    """

    def step() -> None:
        with torch.no_grad():
            for _ in range(calls):
                model(images)

    return step


def device_steps(seed: int, device: str, *, is_small: bool) -> tuple[dict[str, Step], Callable[[], dict[str, float]]]:
    """
    The entries on a GPU, and their true ratios, to be asked for after the measuring.

    Args:
        seed: Of the input.
        device: Such as ``cuda``.
        is_small: Whether to take a small input.
    """
    generator = torch.Generator().manual_seed(seed)
    pair = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
    model = pair.eval().to(device, torch.bfloat16).to(memory_format=torch.channels_last)
    images = torch.randn(_SMALL_SHAPE if is_small else _SHAPE, generator=generator).to(device, torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    step = make_step(model, images, CALLS)
    for _ in range(3):
        step()
    waiting = Waiting(step, cycles_for(step, SHARE))
    steps: dict[str, Step] = {
        false_winner.BASELINE: step,
        "same object": step,
        "copy": make_step(copy.deepcopy(model), images.clone(memory_format=torch.preserve_format), CALLS),
        "one call more": make_step(model, images, CALLS + 1),
        "5 % slower": waiting,
    }

    def truths() -> dict[str, float]:
        known = {"same object": 1.0, "copy": 1.0, "one call more": CALLS / (CALLS + 1)}
        return {**known, "5 % slower": waiting.true_ratio()}

    return steps, truths


def diagnose_once(number: int, part: Part) -> false_winner.Outcome:
    """
    One diagnosis of the entries.

    Args:
        number: Which one.
        part: Says where.
    """
    truths: Callable[[], Mapping[str, float]]
    if part.device == "cuda":
        steps, truths = device_steps(number, part.device, is_small=part.is_small)
    else:
        steps, truths = false_winner.make_steps(number), lambda: false_winner.TRUE_RATIOS
    budget = SMALL_BUDGET_SECONDS if part.is_small else BUDGET_SECONDS
    return false_winner.judge_steps(steps, truths, choose_timer(part.device), number, budget_seconds=budget)


def result_of(outcomes: Sequence[false_winner.Outcome]) -> dict[str, Any]:
    """
    What some diagnoses said, as the fields of a result.

    Args:
        outcomes: At least one.
    """
    rows = false_winner.summarize(list(outcomes))
    result: dict[str, Any] = {
        "diagnoses": len(outcomes),
        "step_seconds": statistics.median(outcome.step_seconds for outcome in outcomes),
        "rounds": statistics.median(outcome.round_count for outcome in outcomes),
        "diagnosis_seconds": statistics.fmean(outcome.seconds for outcome in outcomes),
    }
    words = []
    for row in rows:
        name = str(row["entry"]).replace(" ", "_").replace("%", "percent")
        faster, slower, neither = (row[verdict] for verdict in false_winner.FASTER_SLOWER_NEITHER)
        result |= {f"{name}_faster": faster, f"{name}_slower": slower, f"{name}_no_difference": neither}
        result |= {f"{name}_true_ratio": row["true ratio"], f"{name}_covered": row["covered"]}
        result |= {f"{name}_width": row["mean width"]}
        result[f"{name}_intervals"] = [
            [ratio.low, ratio.median, ratio.high, outcome.truths[ratio.name]]
            for outcome in outcomes
            for ratio in outcome.ratios
            if ratio.name == row["entry"]
        ]
        words.append(f"{row['entry']}: {faster} faster, {slower} slower, {neither} neither, {row['covered']} covered")
    return {"summary": f"of {len(outcomes)}: {'; '.join(words)}"} | result


def measure_overhead(name: str, part: Part) -> dict[str, Any]:
    """
    A diagnosis against the plain script that does the same.

    Args:
        name: Of ``MODELS``.
        part: Says where.
    """
    mode = name.rpartition(" ")[2]
    budget = SMALL_OVERHEAD_BUDGET_SECONDS if part.is_small else OVERHEAD_BUDGET_SECONDS
    model = str(BENCHMARKS.parent / "examples" / MODELS[name])
    with_doctor, plain = overhead.measure_once(model, mode, part.device, budget)
    return {
        "summary": f"{with_doctor:.1f} s against {plain:.1f} s, ratio {with_doctor / plain:.2f}",
        "model": MODELS[name],
        "mode": mode,
        "budget_seconds": budget,
        "diagnose_seconds": with_doctor,
        "plain_seconds": plain,
        "ratio": with_doctor / plain,
    }


def examine(name: str, part: Part) -> dict[str, Any]:
    """
    Does an item.

    Args:
        name: It.
        part: Says where.
    """
    kind, _, rest = name.partition(" ")
    if kind == "overhead":
        return measure_overhead(rest, part)
    count = 2 if part.is_small else DIAGNOSES
    first = int(name.rpartition(" ")[2]) * DIAGNOSES
    return result_of([diagnose_once(first + number, part) for number in range(count)])


def main() -> int:
    part, _ = parse_arguments("winners", __doc__)
    return part.run(
        item_names(),
        lambda name: examine(name, part),
        expected_seconds=lambda name: 150.0 if name.startswith("overhead") else 30.0,
    )


if __name__ == "__main__":
    sys.exit(main())
