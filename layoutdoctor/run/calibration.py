"""
The constants of torch's layout heuristic, measured on this device: each convolution of some models in both formats.

In inference ``decide_layout_opt`` multiplies the operations of every convolution by a constant of its class, what
channels_last takes over what contiguous takes, and applies layout optimization where the sum gets smaller.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.capture.decision import convolution_class, layout_multipliers
from layoutdoctor.diagnosis.records import ConvolutionClass
from layoutdoctor.errors import SubjectError, first_line
from layoutdoctor.examination.ratios import median_ratio
from layoutdoctor.isolation.rounds import measure_rounds
from layoutdoctor.measure.timing import choose_timer
from layoutdoctor.subjects.copies import CHANNELS_LAST, copy_inputs, copy_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.subjects.subject import LoadedSubject

Direction = Literal["forward", "backward"]
CLASSES: tuple[ConvolutionClass, ...] = ("grouped", "small", "in_out", "default")
_CONTIGUOUS, _CHANNELS_LAST = "contiguous", "channels_last"
_FEWEST_ROUNDS = 5


class Call(NamedTuple):
    """One call of ``aten.convolution``, without its values."""

    shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    has_bias: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    is_transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    device: torch.device

    @property
    def kind(self) -> ConvolutionClass:
        """The class by which Inductor weighs it."""
        return convolution_class(self.weight_shape, self.groups)


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """
    What channels_last takes over what contiguous takes, for one class of convolutions; below 1 it is faster.

    Attributes:
        class_: As ``decide_layout_opt`` has it.
        torch: Its constant there; None where this torch's cannot be read, and of the backward pass, which has none.
        of_time: All convolutions of the class together, each as often as the models call it.
        mean: Geometric mean over the distinct convolutions.
        count: Distinct convolutions.
        failed: How many of these could not be run in both formats.
    """

    class_: ConvolutionClass
    direction: Direction
    torch: float | None
    of_time: float | None
    mean: float | None
    lowest: float | None
    highest: float | None
    count: int
    failed: int = 0


def convolutions_of(subject: LoadedSubject) -> dict[Call, int]:
    """
    How often a model calls each convolution with two or three spatial dimensions, when it runs once in eval mode.

    Raises:
        SubjectError: It does not run.
    """
    seen = _Seen()
    copied = copy_model(subject.model)
    copied.set_mode("inference")
    args, kwargs = copy_inputs(subject.args, subject.kwargs)
    try:
        with torch.no_grad(), seen:
            copied.run(*args, **kwargs)
    except Exception as error:
        raise SubjectError(f"cannot run {subject.name} in eager mode: {first_line(error)}") from error
    return seen.calls


class _Seen(TorchDispatchMode):
    """Counts the convolutions that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Call, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation."""
        if func is torch.ops.aten.convolution.default and args[0].dim() in CHANNELS_LAST:
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
            call = Call(
                shape=tuple(x.shape),
                weight_shape=tuple(weight.shape),
                has_bias=bias is not None,
                stride=tuple(stride),
                padding=tuple(padding),
                dilation=tuple(dilation),
                is_transposed=transposed,
                output_padding=tuple(output_padding),
                groups=groups,
                dtype=x.dtype,
                device=x.device,
            )
            self.calls[call] = self.calls.get(call, 0) + 1
        return func(*args, **(kwargs or {}))


def calibrate(
    calls: dict[Call, int], budget_seconds: float, on_done: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Constant, ...]:
    """
    The constants over some convolutions, forward and backward.

    Args:
        calls: Each with how often the models call it.
        budget_seconds: For the timing rounds of one convolution in one direction.
        on_done: Told how many are done, and of how many.
    """
    known = layout_multipliers()
    found = []
    total = 2 * len(calls)
    directions: tuple[Direction, ...] = ("forward", "backward")
    for number, direction in enumerate(directions):
        timed: dict[Call, tuple[float, float] | None] = {}
        for call in calls:
            timed[call] = _time(call, direction, budget_seconds)
            on_done(number * len(calls) + len(timed), total)
        for class_ in CLASSES:
            of_class = [(timed[call], count) for call, count in calls.items() if call.kind == class_]
            constant = known.get(class_) if direction == "forward" else None
            found.append(_constant(class_, direction, constant, of_class))
    return tuple(found)


def _constant(
    class_: ConvolutionClass,
    direction: Direction,
    known: float | None,
    timed: Sequence[tuple[tuple[float, float] | None, int]],
) -> Constant:
    ran = [(*seconds, count) for seconds, count in timed if seconds is not None]
    ratios = [last / contiguous for contiguous, last, _ in ran]
    before, after = (sum(row[column] * row[2] for row in ran) for column in (0, 1))
    return Constant(
        class_=class_,
        direction=direction,
        torch=known,
        of_time=after / before if ran else None,
        mean=statistics.geometric_mean(ratios) if ran else None,
        lowest=min(ratios, default=None),
        highest=max(ratios, default=None),
        count=len(timed),
        failed=len(timed) - len(ran),
    )


def _time(call: Call, direction: Direction, budget_seconds: float) -> tuple[float, float] | None:
    """Seconds in either format, in turns; None where it does not run in both."""
    try:
        steps = {name: _step(call, direction, name == _CHANNELS_LAST) for name in (_CONTIGUOUS, _CHANNELS_LAST)}
        timer = choose_timer(call.device.type)
        times = measure_rounds(steps, baseline=_CONTIGUOUS, timer=timer, budget_seconds=budget_seconds)
        if 0 < len(times[_CONTIGUOUS].round_seconds) < _FEWEST_ROUNDS:
            round_seconds = sum(sum(one.call_seconds[0]) for one in times.values() if one.call_seconds)
            times = measure_rounds(
                steps, baseline=_CONTIGUOUS, timer=timer, budget_seconds=2 * _FEWEST_ROUNDS * round_seconds
            )
    except (RuntimeError, MemoryError):
        return None
    first, last = (times[name].round_seconds for name in (_CONTIGUOUS, _CHANNELS_LAST))
    if not first or not last:
        return None
    seconds = statistics.median(first)
    return seconds, seconds / median_ratio(first, last)


def _step(call: Call, direction: Direction, channels_last: bool) -> Callable[[], None]:
    """One call with its tensors in a format; weights are laid out before, as a model in that format has them."""

    def tensor(shape: Sequence[int]) -> torch.Tensor:
        made = torch.randn(tuple(shape), dtype=torch.float32, device=call.device).to(call.dtype)
        return made.contiguous(memory_format=CHANNELS_LAST[made.dim()]) if channels_last else made

    x, weight = tensor(call.shape), tensor(call.weight_shape)
    outputs = call.weight_shape[1] * call.groups if call.is_transposed else call.weight_shape[0]
    bias = torch.zeros(outputs, dtype=call.dtype, device=call.device) if call.has_bias else None
    places = (call.stride, call.padding, call.dilation, call.is_transposed, call.output_padding, call.groups)
    with torch.no_grad():
        result = torch.ops.aten.convolution(x, weight, bias, *places)
    if direction == "forward":
        return partial(_without_gradients, torch.ops.aten.convolution, x, weight, bias, *places)
    gradient = tensor(result.shape)
    sizes = None if bias is None else list(bias.shape)
    mask = [True, True, bias is not None]
    return partial(_without_gradients, torch.ops.aten.convolution_backward, gradient, x, weight, sizes, *places, mask)


def _without_gradients(function: Callable[..., Any], *args: Any) -> None:
    with torch.no_grad():
        function(*args)
