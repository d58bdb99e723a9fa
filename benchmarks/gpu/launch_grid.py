"""
Is the launch-grid rule for cuDNN's layout conversions right, and does ``trace`` name the tensors that it should?

``layoutdoctor.analysis.convolution_shapes.cudnn_grid`` says with which grid cuDNN launches the conversion of a tensor;
``trace`` tells by it which tensor of a convolution was converted. The rule was read off three kinds of GPU and two
dozen shapes. Here hundreds of convolutions are run one by one, each under a range of its own in one profile per item,
so that all tensors of the convolution that a kernel ran for are known. An item is a family of shapes in one element
type.

    python benchmarks/gpu/launch_grid.py OUT [--device cuda|cpu] [--small] [--seconds 480] [--only conv3d,odd]

What a field of an item says:

- ``grids_as_expected`` of ``conversion_kernels``: the grid is that of a tensor which this convolution can have
  converted in this direction, each tensor once (the gradient of the output twice: both halves of a backward read it).
  ``grids_of_no_tensor``, ``grids_taken_twice``: the rule is wrong; ``mismatches`` has kernel, grid, block and what was
  expected of every tensor, from which it can be mended.
- ``named_right``: ``examine_recorded`` named the one tensor that fits, with its sizes. ``named_one_of_several``: more
  tensors have this grid, and it named one of them (right where ``trace`` leaves a tensor out for a reason).
  ``not_named``: one tensor fits and it named none: a gap. ``not_named_several_fit``: rightly cautious. ``named_wrong``:
  a fault, in ``mismatches``.
- ``dtypes_wrong``, ``directions_wrong``: likewise, against the element type and the format of the call.
- ``formats_wrong``: the strides of a result are not those that ``--target`` computes with (``cudnn_memory_format``), an
  assumption for bfloat16 until it is seen on a GPU; ``format_mismatches`` has them.
- ``forward_calls_converting`` of ``forward_calls``, ``backward_calls_converting`` of ``backward_calls``: which
  convolutions cuDNN wraps in conversions at all; ``calls`` says it one by one.
- ``calls_without_kernels``: the profiler lost the kernels of so many calls; above 0 on a GPU, nothing else is complete.
- ``layout_like_unknown``: kernels whose names speak of layouts and that the dictionary does not know.

On a CPU the convolutions run, nothing is converted, and the summary says so.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from convolution_cases import Case, families
from grid_comparison import Call, Grid, Shape, compare_calls, result_of
from parts import Part, parse_arguments

from layoutdoctor.capture.retarget_convolution import cudnn_memory_format
from layoutdoctor.traces import RecordedTrace, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


KINDS: dict[str, tuple[torch.dtype, dict[str, bool]]] = {
    "bfloat16": (torch.bfloat16, {}),
    "tf32": (torch.float32, {"allow_tf32": True}),
    "float16": (torch.float16, {}),
    "float32": (torch.float32, {"allow_tf32": False}),
    "bfloat16 searched": (torch.bfloat16, {"benchmark": True}),
}
"""Element types and what cuDNN is told: ``searched`` lets it time its algorithms (``cudnn.benchmark``)."""


def item_names(*, is_small: bool) -> list[str]:
    """
    Items, in the order of what they tell.

    Args:
        is_small: Whether to try the program only.
    """
    return [f"{family} in {kind}" for kind in KINDS for family in families(is_small=is_small)]


def examine(name: str, part: Part) -> dict[str, Any]:
    """
    Runs a family of convolutions and compares what was recorded.

    Args:
        name: The item.
        part: Says where.
    """
    family, _, kind = name.rpartition(" in ")
    dtype, options = KINDS[kind]
    flags = {"enabled": True, "benchmark": False, "deterministic": False, "allow_tf32": True, **options}
    runs: list[Run] = []
    errors: list[str] = []
    with torch.backends.cudnn.flags(**flags):
        for case in families(is_small=part.is_small)[family]:
            run = Run(case, dtype, part.device)
            try:
                run.once()  # plans are made, memory is allocated; what cannot run does not reach the profile
                runs.append(run)
            except RuntimeError as error:
                errors.append(f"{case.name}: {str(error).splitlines()[0][:200]}")

        def run_all() -> None:
            for number, run in enumerate(runs):
                run.once(number)

        trace, blocks = recorded(run_all, part.device)
    calls = [call for number, run in enumerate(runs) for call in run.calls(number, trace)]
    comparison = compare_calls(trace, calls, blocks)
    formats = [run.format_mismatch() for run in runs] if part.device == "cuda" else []
    return result_of(comparison, [text for text in formats if text], errors, has_kernels=len(trace.kernels) > 0)


def recorded(run: Callable[[], None], device: str) -> tuple[RecordedTrace, dict[int, Grid]]:
    """
    A run under the profiler as ``trace`` reads it, and sizes of thread blocks by correlation.

    Args:
        run: What to record, warm.
        device: ``cuda`` or ``cpu``.

    Raises:
        TypeError: What the profiler wrote is no trace to ``trace``.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] * (device == "cuda")
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            run()
            if device == "cuda":
                torch.cuda.synchronize()
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace, blocks = read_trace(file), block_sizes(file)
    if not isinstance(trace, RecordedTrace):
        raise TypeError(f"cannot read what the profiler wrote: got {type(trace).__name__}, expected a trace")
    return trace, blocks


class Run:
    """A case in an element type on a device, run once or under ranges of the profiler."""

    def __init__(self, case: Case, dtype: torch.dtype, device: str) -> None:
        self.case, self.dtype, self.device = case, dtype, device
        self.output: Shape = ()
        self.strides: Shape = ()
        self.expected_strides: Shape = ()
        self.is_channels_last = False

    def once(self, number: int | None = None) -> None:
        """
        Runs forward and backward on new tensors.

        Args:
            number: Names the ranges; None for none.
        """
        case = self.case
        given = self._tensor(case.input, is_last=case.input_channels_last)
        weight = self._tensor(case.weight, is_last=case.weight_channels_last)
        sizes = [case.stride] * case.rank, [case.padding] * case.rank, [case.dilation] * case.rank
        if self.device == "cuda":
            torch.cuda.synchronize()
        with _range(number, "forward"):
            result = torch.ops.aten.convolution(
                given, weight, None, *sizes, case.is_transposed, [0] * case.rank, case.groups
            )
        gradient = torch.randn_like(result)  # in the strides of the result
        with _range(number, "backward"):
            torch.autograd.grad(result, (given, weight), gradient)
        format_ = cudnn_memory_format(given, weight) if case.rank > 1 else torch.contiguous_format
        self.output, self.strides = tuple(result.shape), tuple(result.stride())
        self.expected_strides = tuple(torch.empty(result.shape, device="meta", memory_format=format_).stride())
        self.is_channels_last = looks_channels_last(result, default=format_ is not torch.contiguous_format)

    def _tensor(self, shape: Shape, *, is_last: bool) -> torch.Tensor:
        tensor = torch.randn(shape, device=self.device, dtype=self.dtype)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if is_last and len(shape) in formats:
            tensor = tensor.to(memory_format=formats[len(shape)])
        return tensor.requires_grad_()

    def calls(self, number: int, trace: RecordedTrace) -> Iterator[Call]:
        """
        The two calls as the trace's ranges show them.

        Args:
            number: Names the ranges.
            trace: Of the run.
        """
        own = {"input": self.case.input, "weight": self.case.weight, "output": self.output}
        # torch makes a 1-D convolution a 2-D one of height 1 before cuDNN sees it.
        shapes = {role: (*s[:2], 1, *s[2:]) if len(s) == 3 else s for role, s in own.items()}
        gradients = {f"grad_{role}": shape for role, shape in shapes.items()}
        dtype = str(self.dtype).removeprefix("torch.")
        ranges = dict(zip(trace.annotations.name.tolist(), range(len(trace.annotations)), strict=True))
        indices = {name: index for index, name in enumerate(trace.names)}
        for direction in ("forward", "backward"):
            row = ranges[indices[_range_name(number, direction)]]
            start = int(trace.annotations.start[row])
            yield Call(
                self.case.name,
                direction,
                start,
                start + int(trace.annotations.duration[row]),
                {**shapes, **gradients},
                self.is_channels_last,
                dtype,
            )

    def format_mismatch(self) -> str | None:
        """Where the result has other strides than ``--target`` would compute with."""
        if all(
            size == 1 or a == b for size, a, b in zip(self.output, self.strides, self.expected_strides, strict=True)
        ):
            return None
        return f"{self.case.name}: strides {self.strides}, expected {self.expected_strides}"


def looks_channels_last(result: torch.Tensor, *, default: bool) -> bool:
    """
    Whether a convolution worked in channels_last, by the strides of its result.

    Args:
        result: Of rank 3 to 5.
        default: The answer where the strides are those of both formats, or of neither.
    """
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(result.dim())
    if wanted is None:
        return False
    is_last, is_contiguous = result.is_contiguous(memory_format=wanted), result.is_contiguous()
    return default if is_last == is_contiguous else is_last


def _range_name(number: int, direction: str) -> str:
    return f"call {number} {direction}"


def _range(number: int | None, direction: str) -> Any:
    if number is None:
        return contextlib.nullcontext()
    return torch.profiler.record_function(_range_name(number, direction))


def block_sizes(file: Path) -> dict[int, Grid]:
    """
    Sizes of thread blocks by correlation.

    Args:
        file: A Chrome trace.
    """
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    kernels = [event["args"] for event in events if event.get("cat") == "kernel" and "block" in event.get("args", {})]
    return {int(arguments["correlation"]): tuple(arguments["block"]) for arguments in kernels}


def main() -> int:
    part, _ = parse_arguments("launch_grid", __doc__)
    return part.run(item_names(is_small=part.is_small), lambda name: examine(name, part))


if __name__ == "__main__":
    sys.exit(main())
