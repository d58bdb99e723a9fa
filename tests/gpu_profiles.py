"""
Profiles as a GPU would give them, made from real ones of a CPU: the operations stay, the kernels are laid beside them.

``torch.profiler`` records the operations of a CPU run with their nesting, sizes, strides and threads. What oneDNN ran
inside them is taken out, and put in are what PyTorch and cuDNN launch: a call of the runtime and a kernel for each
operation that computes, conversions with the launch grids of their tensors around each convolution, autograd on a
thread of its own, generated kernels under Triton's names.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from recorded_builders import (
    DATA_GRADIENT,
    FORWARD,
    POINTWISE,
    STRIDED_COPY,
    TO_NCHW,
    TO_NHWC,
    WEIGHT_GRADIENT,
)

from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.examination.kernels.shapes import cudnn_grid
from layoutdoctor.measure.profiling import record_iteration
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.recording import Iteration
from layoutdoctor.run import trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytest

    from layoutdoctor.diagnosis.graph import Graph

Shape = tuple[int, ...]
Launch = tuple[str, Shape | None]  # a kernel, and the tensor whose launch grid it has
Event = dict[str, Any]

STREAM = 7
AUTOGRAD_THREAD = 77
_MICROSECONDS = {TO_NHWC: 4.001, TO_NCHW: 6.001, FORWARD: 20.003, DATA_GRADIENT: 24.003, WEIGHT_GRADIENT: 28.003}
_POINTWISE_MICROSECONDS = 2.007
_LATENCY_MICROSECONDS = 5.0
_GENERATED = "layoutdoctor::"
_LAUNCH_NOTHING = frozenset(
    """
    empty empty_like empty_strided new_empty new_empty_strided as_strided as_strided_ resize_ view reshape expand detach
    alias unsqueeze select t transpose
    """.split()
)


@dataclass(frozen=True)
class Convolution:
    """A convolution that ran: sizes of its tensors, and whether what it was given is channels_last."""

    input: Shape
    weight: Shape
    output: Shape
    is_backward: bool
    is_channels_last: bool
    needs_input_gradient: bool = True


def cudnn(convolution: Convolution) -> list[Launch]:
    """What cuDNN launches where its kernels want channels_last: conversions around them for contiguous tensors."""
    input, weight, output = convolution.input, convolution.weight, convolution.output
    parts = [([input, weight], FORWARD, output)]
    if convolution.is_backward:
        parts = [([output, weight], DATA_GRADIENT, input)] if convolution.needs_input_gradient else []
        parts.append(([input, output], WEIGHT_GRADIENT, weight))
    launches: list[Launch] = []
    for read, main, written in parts:
        if convolution.is_channels_last:
            launches.append((main, None))
        else:
            launches += [*((TO_NHWC, shape) for shape in read), (main, None), (TO_NCHW, written)]
    return launches


@dataclass
class GpuProfile:
    """
    The profile of a CPU as that of a GPU.

    Attributes:
        library: What is launched for a convolution.
        has_external: Whether kernels carry the External id of their operation.
        is_replayed: Whether one launch of a graph ran all kernels.
        keep: Where to write the trace as well.
    """

    library: Callable[[Convolution], list[Launch]] = cudnn
    has_external: bool = True
    is_replayed: bool = False
    keep: Path | None = None
    events: list[Event] = field(default_factory=list)
    now: float = 0.0
    correlation: int = 100

    def of(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of a Chrome trace, with kernels."""
        operations = sorted(
            (event for event in document["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")),
            key=lambda event: (event["ts"], -event["dur"]),
        )
        self.events = []
        for event, inside in _nested(operations):
            self._operation(event, inside, on_autograd=False)
        return {**document, "traceEvents": self.events}

    def _operation(self, event: Event, inside: Sequence[Event], *, on_autograd: bool) -> None:
        name = event["name"]
        on_autograd = on_autograd or name.startswith("autograd::engine")
        event = {**event, "tid": AUTOGRAD_THREAD if on_autograd else event["tid"]}
        self.events.append(event)
        if name.startswith(_GENERATED):
            event["name"] = on_gpu(name.rsplit("::", 1)[1])
            event["cat"] = "cpu_op"
            self._launch(event, event["name"], None)
            return
        if name in ("aten::mkldnn_convolution", "aten::convolution_backward"):
            self._convolution(event)
            return
        children = list(_nested(inside))
        for child, below in children:
            self._operation(child, below, on_autograd=on_autograd)
        if _launches(event, ()) and not any(_launches(child, below) for child, below in children):
            self._launch(event, _kernel_of(event), None)

    def _convolution(self, event: Event) -> None:
        arguments = {key: list(value) for key, value in event["args"].items() if isinstance(value, list)}
        is_backward = "backward" in event["name"]
        if not is_backward:  # aten::cudnn_convolution has no bias
            event["name"] = "aten::cudnn_convolution"
            arguments = {key: value[:2] + value[3:] for key, value in arguments.items()}
            event["args"] = {**event["args"], **arguments}
        shapes, strides = arguments["Input Dims"], arguments["Input Strides"]
        first = 1 if is_backward else 0
        convolution = Convolution(
            input=tuple(shapes[first]),
            weight=tuple(shapes[first + 1]),
            output=tuple(shapes[0]) if is_backward else _output_shape(shapes, arguments["Concrete Inputs"]),
            is_backward=is_backward,
            is_channels_last=strides[first][1] == 1,
            needs_input_gradient=not is_backward or arguments["Concrete Inputs"][-1].startswith("[True"),
        )
        for kernel, shape in self.library(convolution):
            self._launch(event, kernel, None if shape is None else cudnn_grid(shape))

    def _launch(self, event: Event, kernel: str, grid: Shape | None) -> None:
        self.correlation += 0 if self.is_replayed and self.correlation > 100 else 1
        moment = event["ts"] + event["dur"] * 0.5
        duration = _MICROSECONDS.get(kernel, _POINTWISE_MICROSECONDS)
        self.now = max(self.now, moment + _LATENCY_MICROSECONDS)
        ids: Event = {"correlation": self.correlation}
        runtime = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": event["pid"]}
        if not self.is_replayed or not any(e["cat"] == "cuda_runtime" for e in self.events):
            self.events.append({**runtime, "tid": event["tid"], "ts": moment, "dur": 0.5, "args": ids})
        if self.has_external:
            ids = {**ids, "External id": event["args"]["External id"]}
        place = {"device": 0, "stream": STREAM, "grid": list(grid or (1, 1, 1))}
        self.events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": kernel,
                "pid": 0,
                "tid": STREAM,
                "ts": self.now,
                "dur": duration,
                "args": {**ids, **place},
            }
        )
        self.now += duration


def on_gpu(name: str) -> str:
    """A generated kernel's name as Triton's."""
    return name.replace("cpp_fused", "triton_poi_fused")


def graph_on_gpu(graph: Graph) -> Graph:
    """A compiled graph whose kernels are called as on a GPU."""
    buffers = tuple(
        msgspec.structs.replace(buffer, kernel=None if buffer.kernel is None else on_gpu(buffer.kernel))
        for buffer in graph.buffers
    )
    return msgspec.structs.replace(graph, buffers=buffers, kernel_names=tuple(map(on_gpu, graph.kernel_names)))


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, profile: GpuProfile | None = None) -> None:
    """From now on diagnoses see profiles of a GPU; everything else of them is this CPU's."""
    own = profile or GpuProfile()

    def record(prepare: Callable[[], Callable[[], None]], *arguments: Any) -> tuple[Iteration, ...]:
        with tempfile.TemporaryDirectory() as directory:
            file = own.keep or Path(directory) / "trace.json"
            record_iteration(prepare(), "cpu", arguments[1], file)
            file.write_text(json.dumps(own.of(json.loads(file.read_bytes()))))
            trace = read_chrome_trace(TraceFile(file))
        return (Iteration(events=trace, device="cuda"),)

    graphs = CompileCapture.graphs
    monkeypatch.setattr(trial, "record_iterations", record)
    on_a_gpu = property(lambda self: tuple(map(graph_on_gpu, graphs.__get__(self))))
    monkeypatch.setattr(CompileCapture, "graphs", on_a_gpu)


def _nested(events: Sequence[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """The outermost of some events, each with those inside it; they are sorted, parents first."""
    outer: Event | None = None
    inside: list[Event] = []
    for event in events:
        if outer is not None and event["ts"] < outer["ts"] + outer["dur"]:
            inside.append(event)
            continue
        if outer is not None:
            yield outer, inside
        outer, inside = event, []
    if outer is not None:
        yield outer, inside


def _launches(event: Event, inside: Sequence[Event]) -> bool:
    name = event["name"].removeprefix("aten::")
    is_launching = event["name"] != name and name not in _LAUNCH_NOTHING
    return is_launching or any(_launches(other, ()) for other in inside)


def _kernel_of(event: Event) -> str:
    """A copy between layouts is strided, everything else pointwise."""
    strides = event["args"].get("Input Strides", [])
    is_strided = event["name"] == "aten::copy_" and strides[0] != strides[1]
    return STRIDED_COPY if is_strided else POINTWISE


def _output_shape(shapes: Sequence[Sequence[int]], values: Sequence[str]) -> Shape:
    """As torch computes it, of tensors without elements."""
    padding, stride, dilation, groups = (json.loads(value) for value in values[2:6])
    input, weight = (torch.empty(shape, device="meta") for shape in shapes[:2])
    found = torch.ops.aten.convolution(input, weight, None, stride, padding, dilation, False, [0], groups)
    return tuple(found.shape)
