"""
A configuration applied by hand, run, timed and recorded: what layoutdoctor's answers are held against.

Uses nothing of layoutdoctor: the model is copied, given its memory format and compiled in a few lines of plain torch,
and timed between CUDA events, block after block, without emptying the cache between calls.
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
CHANNELS_LAST = ("eager-channels-last", "inductor-channels-last", "inductor-channels-last-opt-off")
OPTIONS: dict[str, dict[str, Any]] = {
    "inductor-layout-opt-off": {"layout_optimization": False},
    "inductor-layout-opt-on": {"layout_optimization": True},
    "inductor-channels-last-opt-off": {"layout_optimization": False},
}
"""The default configurations, as the table in the README describes them."""

BLOCK_SECONDS = 0.005
WARM_UP_CALLS = 3
LEAST_ROUNDS, MOST_ROUNDS = 11, 101


def plain_step(
    configuration: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], mode: str, label: str
) -> Callable[[], None]:
    """
    One iteration of a model under one of the default configurations, as somebody would write it by hand.

    Args:
        configuration: Its name.
        model: It is copied.
        inputs: They are copied.
        mode: ``inference`` or ``training`` (forward, backward from a fixed random gradient).
        label: Unique in the process: compiled code is kept by the name of what is compiled.
    """
    is_training = mode == "training"
    module = copy.deepcopy(model).train(is_training)
    args = [tensor.clone() for tensor in inputs]
    if configuration in CHANNELS_LAST:
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = _channels_last(tensor.data)
        args = [_channels_last(tensor) for tensor in args]
    run: Callable[..., Any] = module
    if configuration.startswith("inductor"):
        run = torch.compile(_with_own_code(module, label), options=OPTIONS.get(configuration))
    if not is_training:
        return lambda: _without_gradients(run, args)
    trained = list(module.parameters())
    if not trained:
        trained = [tensor.requires_grad_(True) for tensor in args if tensor.is_floating_point()]
    gradients: list[torch.Tensor] = []

    def step() -> None:
        output = run(*args)
        if not gradients:
            gradients.append(torch.randn_like(output))
        output.backward(gradients[0])
        for tensor in trained:  # those of one configuration shall not lie beside those of another
            tensor.grad = None

    return step


def time_in_turns(steps: Mapping[str, Callable[[], None]], device: str, seconds: float) -> dict[str, list[float]]:
    """
    Seconds of one call of each, round by round; in every round all have their turn, each time beginning with another.

    Args:
        steps: Warm iterations.
        device: ``cuda`` or ``cpu``.
        seconds: How long to go on, once there are the least rounds.
    """
    names = list(steps)
    blocks = {}
    for name, step in steps.items():
        for _ in range(WARM_UP_CALLS):
            step()
        blocks[name] = min(50, max(1, round(BLOCK_SECONDS / max(_time_block(step, 1, device), 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.monotonic() > deadline:
            break
        for offset in range(len(names)):
            name = names[(number + offset) % len(names)]
            times[name].append(_time_block(steps[name], blocks[name], device))
    return times


def peak_memory(step: Callable[[], None]) -> int:
    """
    Most bytes of device memory in use during one iteration, above what was in use before.

    Args:
        step: A warm iteration on a GPU.
    """
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def record(step: Callable[[], None], device: str, file: Path, *, with_stack: bool) -> None:
    """
    Writes the profiler's trace of one iteration.

    Args:
        step: A warm iteration.
        device: ``cuda`` or ``cpu``.
        file: ``.json`` or ``.json.gz``.
        with_stack: Whether Python's frames are recorded, which makes a file several times as large.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=with_stack) as profiler:
        step()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))


def paired_ratio(over: list[float], under: list[float]) -> float:
    """
    Median of the ratios round by round.

    Args:
        over: Seconds, one for each round.
        under: The same rounds of the other one.
    """
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=FORMATS[tensor.dim()]) if tensor.dim() in FORMATS else tensor


def _with_own_code(module: nn.Module, label: str) -> Callable[..., Any]:
    """A function around the module with a code object of its own, so that no two share what dynamo compiled."""

    def call(*args: Any) -> Any:
        return module(*args)

    call.__code__ = call.__code__.replace(co_name="".join(c if c.isalnum() else "_" for c in label))
    return call


def _without_gradients(run: Callable[..., Any], args: list[torch.Tensor]) -> None:
    with torch.no_grad():
        run(*args)


def _time_block(step: Callable[[], None], calls: int, device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / calls
