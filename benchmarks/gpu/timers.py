"""
Do other timers see what layoutdoctor's sees? Ratios of two configurations, each by five ways of timing on a GPU.

For each model two or three configurations are made, warm, and timed by

- ``layoutdoctor``: ``measure_rounds`` with its ``CudaTimer`` (events around every call, the L2 cache emptied before it,
  configurations in turns, the shortest call of a round, an interval from the rounds);
- ``do_bench``: ``triton.testing.do_bench(step, return_mode="median")``, one configuration after the other, as it is
  usually called, three times over;
- ``graph``: the same step captured as a CUDA graph, replayed under layoutdoctor's timer: no launch costs anything;
- ``events``: events around every call, back to back, the cache left as it is, medians of blocks in turns;
- ``wall``: ``time.perf_counter`` around a call and a synchronisation, medians of blocks in turns.

    python benchmarks/gpu/timers.py OUT [--device cuda|cpu] [--small] [--seconds 480] [--only conv3d]

How to read it: ``ratio_<timer>_<configuration>`` is [low, median, high]: how many times faster than the first
configuration (``baseline``) this one is. For ``layoutdoctor`` and ``graph`` the ends are the interval's; for the others
the smallest and the largest of their repetitions. ``disagreeing`` lists timers whose range lies clear of layoutdoctor's
interval by more than its resolution of 1 %, ``opposite`` those that would choose the other configuration. What to
expect:

- ``do_bench`` agrees, since it times the same thing: where it does not, layoutdoctor's timer is to be mended;
  ``seconds_do_bench_...`` over ``seconds_layoutdoctor_...`` should be 1 to within a few per cent (a median against a
  minimum).
- ``graph`` and ``wall`` may differ for the model of many tiny kernels, where launching is the cost: the emptying of the
  cache (some 0.1 ms) is a head start for the processor, and what takes longer to launch than that is timed by how fast
  it is launched. ``launch_bound`` is layoutdoctor's time over the graph's: near 1, launches are hidden; well above 1,
  they are part of the time, as they are in the user's own loop.
- ``events`` is faster where a step finds its data in the L2 cache of the call before: small models only.

On a CPU layoutdoctor's timer is compared with ``wall`` alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from parts import Part, parse_arguments
from torch import nn

from layoutdoctor.analysis.comparison import RESOLUTION, paired_ratio
from layoutdoctor.measure.timing import choose_timer, measure_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Step = Callable[[], None]
    Range = list[float]

BUDGET_SECONDS = 4.0
REPETITIONS = 3
BLOCKS = 7
_BLOCK_SECONDS = 0.02
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
REFERENCE = "layoutdoctor"


class ManyTiny(nn.Module):
    """A long chain of operations on next to nothing: what it costs is to launch them; x is [N, C, H, W]."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, C, H, W]."""
        for layer in self.layers:
            x = torch.sigmoid(layer(x)) * 2
        return x


def _stack(rank: int, widths: Sequence[int]) -> nn.Module:
    convolution, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[rank - 2]
    layers: list[nn.Module] = []
    for before, width in pairwise(widths):
        layers += [convolution(before, width, 3, padding=1), norm(width), nn.ReLU()]
    return nn.Sequential(*layers).eval()


@dataclass(frozen=True)
class Model:
    """
    A model to time.

    Attributes:
        build: Makes it.
        shape: Of its input.
        small_shape: To try the program.
        dtype: On a GPU; float32 on a CPU.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    small_shape: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16


MODELS = {
    "conv3d stack": Model(lambda: _stack(3, (8, 64, 64, 64)), (4, 8, 32, 128, 128), (1, 8, 4, 12, 12)),
    "many tiny kernels": Model(lambda: ManyTiny(100), (8, 4, 8, 8), (2, 4, 8, 8)),
    "conv2d stack large": Model(lambda: _stack(2, (64, 128, 128, 128)), (64, 64, 112, 112), (1, 64, 14, 14)),
    "conv2d stack small": Model(lambda: _stack(2, (16, 32, 32, 32)), (8, 16, 56, 56), (1, 16, 14, 14)),
    "conv2d stack float32": Model(lambda: _stack(2, (64, 128, 128)), (32, 64, 56, 56), (1, 64, 14, 14), torch.float32),
}
CONFIGURATIONS = ("eager", "eager-channels-last", "compiled")


def make_steps(name: str, part: Part) -> dict[str, Step]:
    """
    Each configuration of a model as a step, warm.

    Args:
        name: Of the model.
        part: Says where, and how large.
    """
    model = MODELS[name]
    dtype = model.dtype if part.device == "cuda" else torch.float32
    steps: dict[str, Step] = {}
    for configuration in CONFIGURATIONS:
        torch.manual_seed(0)
        module = model.build().to(part.device, dtype)
        x = torch.randn(model.small_shape if part.is_small else model.shape, device=part.device, dtype=dtype)
        if configuration == "eager-channels-last":
            module, x = module.to(memory_format=_FORMATS[x.dim()]), x.to(memory_format=_FORMATS[x.dim()])
        run = torch.compile(module) if configuration == "compiled" else module
        steps[configuration] = _step(run, x)
        for _ in range(3):
            steps[configuration]()
    return steps


def _step(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Step:
    def step() -> None:
        with torch.no_grad():
            run(x)

    return step


def captured(step: Step) -> Step:
    """
    The replay of a step as a CUDA graph.

    Args:
        step: Warm.

    Source:
        ``torch.cuda.graph``: warm-up on a side stream, then the capture.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Step = graph.replay
    return replay


# The timers: each gives seconds per configuration and repetition, in the same order for all.


def by_layoutdoctor(steps: Mapping[str, Step], device: str, budget_seconds: float) -> dict[str, list[float]]:
    """
    Round times as a diagnosis takes them.

    Args:
        steps: The configurations.
        device: ``cuda`` or ``cpu``.
        budget_seconds: For the rounds.
    """
    baseline = next(iter(steps))
    times = measure_rounds(steps, baseline=baseline, budget_seconds=budget_seconds, timer=choose_timer(device))
    failures = [f"{name}: {one.failure}" for name, one in times.items() if one.failure is not None]
    if failures:
        raise RuntimeError("; ".join(failures))
    return {name: list(one.round_seconds) for name, one in times.items()}


def by_do_bench(steps: Mapping[str, Step]) -> dict[str, list[float]]:
    """
    Medians of Triton's own timer.

    Args:
        steps: The configurations.
    """
    from triton.testing import do_bench

    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPETITIONS):
        for name, step in steps.items():
            found[name].append(do_bench(step, return_mode="median") * 1e-3)
    return found


def in_blocks(steps: Mapping[str, Step], time_block: Callable[[Step, int], list[float]]) -> dict[str, list[float]]:
    """
    Medians of blocks of calls, in turns.

    Args:
        steps: The configurations.
        time_block: Seconds of each of so many calls.
    """
    calls = {name: max(1, min(100, int(_BLOCK_SECONDS / min(time_block(step, 3))))) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(BLOCKS):
        for name, step in steps.items():
            found[name].append(statistics.median(time_block(step, calls[name])))
    return found


def event_block(step: Step, calls: int) -> list[float]:
    """
    Seconds between events around each call, back to back.

    Args:
        step: One iteration.
        calls: How many.
    """
    torch.cuda.synchronize()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    for start, end in events:
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


def wall_block(step: Step, calls: int) -> list[float]:
    """
    Seconds of each call on the processor's clock, until the device is done.

    Args:
        step: One iteration.
        calls: How many.
    """
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found


# What they say, compared: no device is needed for this half.


def ratios_of(times: Mapping[str, Sequence[float]], *, is_paired: bool) -> dict[str, Range]:
    """
    How many times faster than the first configuration each other one is: low, median, high.

    Args:
        times: Seconds by configuration, one for each round or repetition.
        is_paired: Whether there are rounds enough for an interval; else the range of the repetitions.
    """
    baseline, *others = times
    found: dict[str, Range] = {}
    for name in others:
        if is_paired:
            ratio = paired_ratio(name, times[baseline], times[name])
            found[name] = [ratio.low, ratio.median, ratio.high]
        else:
            ratios = [one / other for one, other in zip(times[baseline], times[name], strict=True)]
            found[name] = [min(ratios), statistics.median(ratios), max(ratios)]
    return found


def compare_timers(ratios: Mapping[str, Mapping[str, Range]]) -> tuple[list[str], list[str]]:
    """
    Which timers see another ratio than layoutdoctor's, and which would choose the other configuration.

    Args:
        ratios: By timer and configuration.

    Returns:
        Those whose range lies clear of layoutdoctor's interval by more than its resolution; those that find faster what
        it finds slower, or the other way, both with certainty.
    """
    disagreeing, opposite = [], []
    for timer, by_configuration in ratios.items():
        for name, (low, median, high) in by_configuration.items():
            ours = ratios[REFERENCE][name]
            if timer == REFERENCE:
                continue
            if low > ours[2] * (1 + RESOLUTION) or high < ours[0] * (1 - RESOLUTION):
                disagreeing.append(f"{timer}, {name}: {median:.3f} against {ours[1]:.3f}")
            if _side(low, high) * _side(ours[0], ours[2]) < 0:
                opposite.append(f"{timer}, {name}: {median:.3f} against {ours[1]:.3f}")
    return disagreeing, opposite


def _side(low: float, high: float) -> int:
    """1 where faster with certainty, -1 where slower, 0 where neither."""
    return (low > 1 + RESOLUTION) - (high < 1 - RESOLUTION)


def result_of(times: Mapping[str, Mapping[str, Sequence[float]]], failures: Sequence[str]) -> dict[str, Any]:
    """
    An item's result.

    Args:
        times: Seconds by timer and configuration.
        failures: Timers that did not work, and why.
    """
    ratios = {timer: ratios_of(one, is_paired=timer in (REFERENCE, "graph")) for timer, one in times.items()}
    disagreeing, opposite = compare_timers(ratios)
    result: dict[str, Any] = {
        "baseline": next(iter(times[REFERENCE])),
        "disagreeing": disagreeing,
        "opposite": opposite,
        "failures": list(failures),
        "rounds": len(next(iter(times[REFERENCE].values()))),
    }
    for timer, by_configuration in times.items():
        result |= {f"seconds_{timer}_{name}": statistics.median(one) for name, one in by_configuration.items()}
        result |= {f"ratio_{timer}_{name}": one for name, one in ratios[timer].items()}
    for name in times.get("graph", {}):
        ours, graph = result[f"seconds_{REFERENCE}_{name}"], result[f"seconds_graph_{name}"]
        result[f"launch_bound_{name}"] = ours / graph
    for name in times.get("do_bench", {}):
        ours, theirs = result[f"seconds_{REFERENCE}_{name}"], result[f"seconds_do_bench_{name}"]
        result[f"do_bench_over_layoutdoctor_{name}"] = theirs / ours
    words = [
        f"{name} {', '.join(f'{timer} {ratios[timer][name][1]:.3f}' for timer in ratios)}" for name in ratios[REFERENCE]
    ]
    tail = f"; disagreeing: {len(disagreeing)}, opposite: {len(opposite)}"
    return {"summary": f"{'; '.join(words)}{tail}"} | result


def examine(name: str, part: Part) -> dict[str, Any]:
    """
    Times a model's configurations by every timer.

    Args:
        name: Of the model.
        part: Says where.
    """
    steps = make_steps(name, part)
    budget = 1.0 if part.is_small else BUDGET_SECONDS
    times = {REFERENCE: by_layoutdoctor(steps, part.device, budget)}
    timers: dict[str, Callable[[], dict[str, list[float]]]] = {"wall": lambda: in_blocks(steps, wall_block)}
    if part.device == "cuda":
        timers["do_bench"] = lambda: by_do_bench(steps)
        timers["events"] = lambda: in_blocks(steps, event_block)
        timers["graph"] = lambda: by_layoutdoctor(
            {one: captured(step) for one, step in steps.items()}, part.device, budget
        )
    failures = []
    for timer, run in timers.items():
        try:
            times[timer] = run()
        except Exception as error:  # the other timers go on
            failures.append(
                f"{timer}: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
            )
    return result_of(times, failures)


def main() -> int:
    part, _ = parse_arguments("timers", __doc__)
    return part.run(MODELS, lambda name: examine(name, part), expected_seconds=lambda _: 30.0)


if __name__ == "__main__":
    sys.exit(main())
