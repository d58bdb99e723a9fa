"""
Small recorded traces for tests: a ``Recorder`` lays operations, launches and kernels one after the other.

Host calls take 10 ns, kernels 1000 ns unless told otherwise, each stream runs its kernels in the order of their
launches. What is not asked for is as the profiler writes it: External ids of operations on kernels, one correlation
for each launch.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from builders import a_diagnosis, a_graph, a_lack, a_location, a_node, a_trial, an_environment, recordings_of

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.kernels.shapes import cudnn_grid
from layoutdoctor.recording.onednn import read_onednn_log
from layoutdoctor.recording.recording import (
    NONE,
    FrameEvents,
    Iteration,
    KernelEvents,
    LaunchEvents,
    OperationArguments,
    OperationEvents,
    RecordedTrace,
    TransferEvents,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.recording.recording import Recording

Shape = tuple[int, ...]
Grid = tuple[int, int, int]

CUDNN = "cudnn::engines_precompiled::"
TO_NHWC = f"void {CUDNN}nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(x)"
TO_NCHW = f"void {CUDNN}nhwcToNchwKernel<__half, __half, float, true, false, (cudnnKernelDataType_t)0>(x)"
FORWARD = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
DATA_GRADIENT = "sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
WEIGHT_GRADIENT = "sm90_xmma_wgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
TRANSPOSE = "batched_transpose_32x32_half"
MIOPEN_FORWARD = "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32"
MIOPEN_DATA_GRADIENT = "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32"
MIOPEN_WEIGHT_GRADIENT = "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32"
FILL = "SubTensorOpWithScalar1d"
CAST_RESULT = "SubTensorOpWithCastTensor1d"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, x>(int, x)"
STRIDED_COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(x)>(int, x)"
)
GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"

LOG = (
    "onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)\n"
    "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost\n"
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 "
    "dst:f32::blocked:aBcd16b::f0,,,2x8x4x4,0.005\n"
)

TABLES: dict[str, Any] = {
    **{"kernels": KernelEvents, "transfers": TransferEvents, "operations": OperationEvents, "launches": LaunchEvents},
    **{"frames": FrameEvents, "annotations": FrameEvents},
}
LOGGED_SECONDS = 1_790_000_000.0
HOST_CALL = 10
KERNEL = 1000
STREAM = 7


@dataclass
class _Row:
    """One event: its columns by name."""

    values: dict[str, int]
    order: int


@dataclass
class Recorder:
    """
    Collects the events of a trace.

    Attributes:
        external: What kernels carry as External id: ``"operation"`` that of the innermost one, ``"correlation"`` the
            correlation once more, as from 2022 to 2024, ``None`` nothing.
        has_shapes: Whether arguments of operations are kept.
        now: The host's clock, in nanoseconds.
    """

    external: str | None = "operation"
    has_shapes: bool = True
    now: int = 0
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[str, str], int] = field(default_factory=dict)
    grids: dict[Grid, int] = field(default_factory=dict)
    arguments: dict[OperationArguments, int] = field(default_factory=dict)
    rows: dict[str, list[_Row]] = field(default_factory=dict)
    stream_ends: dict[tuple[int, int], int] = field(default_factory=dict)
    open_operations: list[int] = field(default_factory=list)
    thread: int = 0
    correlation: int = 100
    external_id: int = 5000

    def __post_init__(self) -> None:
        self.on_thread("main")

    def on_thread(self, name: str) -> None:
        """What follows runs on that thread."""
        self.thread = self.threads.setdefault(("1", name), len(self.threads))
        self.open_operations = []

    @contextmanager
    def operation(self, name: str, **changes: Any) -> Iterator[None]:
        """An operation around what is recorded inside; fields of its arguments and of its row by keyword."""
        self.external_id += 1
        row = {
            "name": self._name(name),
            "start": self._tick(),
            "duration": 0,
            "thread": self.thread,
            "external": self.external_id,
            "sequence": NONE,
            "forward_thread": NONE,
            "arguments": self._arguments(changes),
            **changes,
        }
        self._add("operations", row)
        self.open_operations.append(row["external"])
        yield
        self.open_operations.pop()
        row["duration"] = self._tick() - row["start"]

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        """A Python frame or module call around what is recorded inside."""
        with self._range("frames", name):
            yield

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """An annotated range, such as a step of the profiler."""
        with self._range("annotations", name):
            yield

    @contextmanager
    def _range(self, table: str, name: str) -> Iterator[None]:
        row = {"name": self._name(name), "start": self._tick(), "duration": 0, "thread": self.thread}
        self._add(table, row)
        yield
        row["duration"] = self._tick() - row["start"]

    def kernel(self, name: str, *, is_launched: bool = True, grid: Grid | None = None, **changes: Any) -> None:
        """A kernel launched now; ``at`` and ``takes`` say when it runs on the device."""
        takes, at = changes.pop("takes", KERNEL), changes.pop("at", None)
        self.correlation += 1
        moment, correlation = self._tick(), changes.setdefault("correlation", self.correlation)
        device, stream = changes.setdefault("device", 0), changes.setdefault("stream", STREAM)
        start = max(moment, self.stream_ends.get((device, stream), 0)) if at is None else at
        self.stream_ends[device, stream] = start + takes
        inner = self.open_operations[-1] if self.open_operations and is_launched else NONE
        external = {"operation": inner, "correlation": correlation, None: NONE}[self.external]
        row = {"name": self._name(name), "start": start, "duration": takes, "grid": NONE, "process": 0}
        if grid is not None:
            row["grid"] = self.grids.setdefault(grid, len(self.grids))
        self._add("kernels", {**row, "external": external, **changes})
        if is_launched:
            self._launch("cudaLaunchKernel", moment, correlation)

    def replay(self, *names: str) -> None:
        """Kernels that one launch of a graph runs."""
        self.correlation += 1
        correlation = self.correlation
        self._launch("cudaGraphLaunch", self._tick(), correlation)
        for name in names:
            self.kernel(name, is_launched=False, correlation=correlation)

    def _launch(self, name: str, moment: int, correlation: int) -> None:
        row = {"name": self._name(name), "start": moment, "thread": self.thread, "correlation": correlation}
        self._add("launches", {**row, "process": 0})

    def call(self) -> None:
        """A call of the device runtime between two launches, which leaves a gap in the correlations."""
        self.correlation += 1

    def transfer(self, name: str = "Memcpy DtoH (Device -> Pageable)", **changes: int) -> None:
        """A copy by the device's own engine, at ``start`` for ``duration``."""
        row = {"start": self.now, "duration": KERNEL, "device": 0, "stream": STREAM, "process": 0, **changes}
        self._add("transfers", {"name": self._name(name), **row})

    def convolution(self, input: Shape, weight: Shape, *kernels: str, output: Shape | None = None, **more: Any) -> None:
        """
        A forward convolution of stride 1 that keeps the spatial sizes, with cuDNN's or MIOpen's kernels in order.

        The conversions of cuDNN get the launch grids of input and weight, and behind them of the output.
        """
        output = (input[0], weight[0], *input[2:]) if output is None else output
        grids = {TO_NHWC: [input, weight], TO_NCHW: [output]}
        padding = [size // 2 for size in weight[2:]]
        ones = [1] * len(padding)
        values = ["", "", "", str(ones), str(padding), str(ones), "1"]
        fields = {"shapes": [input, weight, (weight[0],), (), (), (), ()], "values": values}
        name = more.pop("name", f"aten::conv{len(padding)}d")
        with self.operation(name, types=[more.pop("dtype", "c10::Half")], **fields, **more):
            for kernel in kernels:
                waiting = grids.get(kernel, [])
                self.kernel(kernel, grid=cudnn_grid(waiting.pop(0)) if waiting else None)

    def pointwise(self, name: str, *shapes: Shape, kernel: str = POINTWISE, **more: Any) -> None:
        """An operation of one kernel."""
        with self.operation(name, shapes=list(shapes), **more):
            self.kernel(kernel)

    def trace(self, **changes: Any) -> RecordedTrace:
        """The trace, as a reader returns it."""
        return RecordedTrace(
            **{
                "source": "kineto_trace",
                "names": list(self.names),
                **{table: kind(**self._columns(table, kind)) for table, kind in TABLES.items()},
                "threads": list(self.threads),
                "grids": list(self.grids),
                "arguments": list(self.arguments),
                **changes,
            }
        )

    def _columns(self, table: str, kind: type) -> dict[str, Any]:
        rows = self.rows.get(table, [])
        longest_first = table in ("operations", "frames", "annotations")
        lengths = [-row.values["duration"] if longest_first else row.order for row in rows]
        order = np.lexsort((lengths, [row.values["start"] for row in rows])) if rows else []
        return {name: np.array([rows[i].values[name] for i in order], np.int64) for name in kind.__slots__}  # type: ignore[attr-defined]

    def _add(self, table: str, values: dict[str, int]) -> None:
        rows = self.rows.setdefault(table, [])
        rows.append(_Row(values, len(rows)))

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _tick(self) -> int:
        self.now += HOST_CALL
        return self.now

    def _arguments(self, changes: dict[str, Any]) -> int:
        """Takes the fields of the arguments out of the changes."""
        lists = {key: _json(changes.pop(key)) for key in ("shapes", "strides", "types", "values") if key in changes}
        texts = {key: changes.pop(key) for key in ("kernel_options", "call_stack") if key in changes}
        recorded = OperationArguments(**(lists if self.has_shapes else {}), **texts)
        if recorded == OperationArguments():
            return NONE
        return self.arguments.setdefault(recorded, len(self.arguments))


def a_recording(**changes: Any) -> Recording:
    """One of an eager trial: a convolution with a conversion of oneDNN's in it, and a copy that the model asks for."""
    recorder = Recorder()
    shape, strides = (2, 8, 4, 4), [(128, 16, 4, 1), (128, 1, 32, 8)]
    copy = recorder.operation("aten::copy_", shapes=[shape, shape], strides=strides)
    with recorder.operation("aten::contiguous"), recorder.operation("aten::clone"), copy:
        recorder.now += 40_000
    with recorder.operation("aten::relu", shapes=[shape], strides=strides[:1]):
        pass
    log = read_onednn_log(LOG)
    iterations = tuple(
        Iteration(
            events=recorder.trace(base_nanoseconds=base),
            device="cpu",
            log=log,
            lacks=(a_lack("a lack"),),
        )
        for base in (5_000_000_000, 7_000_000_000)
    )
    layouts = [strided_layout(shape, stride) for stride in reversed(strides)]
    nodes = (
        a_node("x", op="placeholder", layout=layouts[0], location=a_location()),
        a_node("clone", "aten.clone.default", ("x",), layout=layouts[1], called="contiguous", is_called_directly=True),
        a_node("relu", "aten.relu.default", ("clone",), layout=layouts[1]),
    )
    graph = a_graph(name="eager", nodes=nodes, output_names=("relu",))
    trial = a_trial("eager", graphs=(graph,), notes=("a note",))
    (bare,) = recordings_of(a_diagnosis(trial, environment=an_environment(copy_bandwidth_bytes_per_second=1e10)))
    fields = {"trial": msgspec.structs.replace(bare.trial, graphs=(graph,)), "iterations": iterations}
    return msgspec.structs.replace(bare, **{**fields, "was_profiled": True, **changes})


def _json(items: Sequence[Any]) -> bytes:
    return json.dumps([list(item) if isinstance(item, tuple) else item for item in items]).encode()


def logged(
    kind: str,
    problem: str,
    prop_kind: str = "undef",
    *,
    at: float | None = None,
    takes: float = 0.5,
    dtypes: Sequence[str] = (),
    **tags: str,
) -> str:
    """A line of oneDNN's log, with the formats of its tensors by role; milliseconds, since ``LOGGED_SECONDS``."""
    stamp = "" if at is None else f"{LOGGED_SECONDS * 1e3 + at:.6f},"
    types = dtypes or ["f32"] * len(tags)
    tensors = " ".join(
        f"{role}:{dtype}::blocked:{tag}::f0" for dtype, (role, tag) in zip(types, tags.items(), strict=True)
    )
    return f"onednn_verbose,v1,{stamp}primitive,exec,cpu,{kind},jit:any,{prop_kind},{tensors},,,{problem},{takes}"


def name_of_operation(trace: RecordedTrace, row: int) -> str | None:
    """The name of an operation's row; None where it is not known."""
    return trace.names[int(trace.operations.name[row])] if row != NONE else None
