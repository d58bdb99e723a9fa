"""Kernels of one iteration, and their sums."""

from __future__ import annotations

from typing import Literal

from layoutdoctor.diagnosis.conversion import Conversion
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.record import Count, Integer, Moment, NonNegativeSeconds, Record, Share

SourceKind = Literal[
    "profiler",
    "onednn_log",
    "kineto_trace",
    "kineto_operations",
    "nsys_export",
    "torch_trace_log",
    "captured_compiles",
    "totals_table",
    "key_averages",
    "operation_averages",
    "nsys_kernel_summary",
    "nsys_summary_with_copies",
    "nsys_kernel_list",
    "nsys_launch_list",
    "rocprofv3_kernel_list",
    "rocprofv3_summary",
    "tracelens_summary",
]
"""Sources of kernels. ``kineto_operations`` are the operations of a CPU's trace, which count as kernels."""

TotalKind = Literal["kernel", "operation", "module", "step", "possible", "beside", "moved"]


class Kernel(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One entry of the kernel list of the profiled iteration, in order.

    Attributes:
        name: Name of the device kernel, generated kernel, oneDNN primitive or leaf operation.
        seconds: Its time in a call; the median over several iterations of its share of the call.
        op: ATen operation it ran in; None for a generated kernel.
        library: ``onednn``, ``inductor``, ``aten``, ``cudnn``...; None if not known.
        problem: The library's own description, such as ``mb4_ic64oc64_ih56...``.
        implementation: The library's name of the code it chose, such as ``brg_conv_fwd:avx512_core``.
        node: FX node, or eager operation, that ran it, where that is certain.
    """

    name: str
    seconds: NonNegativeSeconds | None
    start_seconds: Moment | None = None
    op: str | None = None
    library: str | None = None
    problem: str | None = None
    implementation: str | None = None
    stream: Integer | None = None
    backward: bool = False
    node: str | None = None
    graph: str | None = None


class Total(Record, frozen=True, kw_only=True):
    """
    Kernels of a recorded trace or of an iteration on a GPU, added up.

    Attributes:
        kind: What they are added up by: ``possible`` by the names of those that may convert a layout, ``beside`` by the
            work for convolutions that is neither convolving nor a layout conversion, ``moved`` by the work of others
            that moves data for other reasons than layout.
        library: Whose kernels they are; for ``kernel`` only, None if not known.
    """

    kind: TotalKind
    name: str
    count: Count
    seconds: NonNegativeSeconds
    conversion_count: Count = 0
    conversion_seconds: NonNegativeSeconds = 0.0
    library: str | None = None


class Creations(Record, frozen=True, kw_only=True):
    """
    The primitives that oneDNN created, as its log has them.

    Attributes:
        count: Creations of what was in no cache, those within another one left out.
        distinct_count: The different primitives among them.
        hit_count: Primitives that a cache had.
        seconds: Time of all of these, of the look-ups in the cache as well.
        longest: The primitive whose single creation took longest, with oneDNN's description of it.
        longest_seconds: The time of that creation.
    """

    count: Count
    distinct_count: Count
    hit_count: Count
    seconds: NonNegativeSeconds
    longest: str
    longest_seconds: NonNegativeSeconds


class Waiting(Record, frozen=True, kw_only=True):
    """
    What a recorded run waited for, or an iteration of a diagnosis.

    Attributes:
        span_seconds: From the first to the last that ran on the device; of all profiler steps, where those are longer.
            In a diagnosis, a call in the timing rounds.
        busy_seconds: In which a kernel or a copy ran on the device, the busiest of several.
        device_count: Devices that something ran on.
        collective_seconds: Kernels of NCCL and the like, which wait for other devices.
        copy_seconds: Copies and fills by the device's own engines.
        step_count: Profiler steps in which something ran on the device; None if none was recorded.
        step_seconds: The median one.
        conversion_bound_seconds: The most that the layout conversions counted, and the kernels that may convert a
            layout, can cost in a step, or without steps in all: when nothing else ran. An upper bound: the host may
            have been what the step waited for.
        launch_lag_seconds: From a kernel's launch to its start, the median; None if launches were not recorded.
        waits_for: ``device`` where that was busy nearly always, ``host`` where it was hardly busy, or mostly idle and
            found its queue empty; None if neither can be said.
    """

    span_seconds: NonNegativeSeconds
    busy_seconds: NonNegativeSeconds
    device_count: Count
    collective_seconds: NonNegativeSeconds
    copy_seconds: NonNegativeSeconds
    step_count: Count | None
    step_seconds: NonNegativeSeconds | None
    conversion_bound_seconds: NonNegativeSeconds
    launch_lag_seconds: NonNegativeSeconds | None
    waits_for: Literal["device", "host"] | None


class KernelSummary(Record, frozen=True, kw_only=True):
    """
    What ran in one warm, profiled iteration, or in the whole of a recorded trace.

    Attributes:
        count: Kernels in the list.
        seconds: Sum of their times; not the wall time.
        around_seconds: On a CPU, time within calls of a library but in none of its kernels; None if not recorded.
        between_seconds: Time of a call in which no kernel runs, nor a library's call around its kernels; None if not
            recorded.
        conversion_count: Library conversions that change a layout (direction other than ``none``).
        share: ``conversion_seconds`` over ``seconds``; None if no kernel was recorded.
        conversions: Every library conversion kernel and every oneDNN ``reorder``, also those of direction ``none``.
        not_understood_count: Lines and events that could not be read, or conversions that could not be described.
        kernels: The list itself, in order, of a trace its first 20,000; a file has it once for trials of the same code.
        lacks: The facts that could not be recorded.
        undecided_count: Kernels that may convert a layout, though nothing says so; in no other sum of conversions.
        creations: In a log of oneDNN, what was created; None if the log has no line of a creation.
        waiting: On a GPU, what a recorded trace or an iteration waited for; None elsewhere.
        exposed_conversion_seconds: On a GPU, the part of ``conversion_seconds`` in which nothing else ran on the
            device: what the run really waited for.
        convolution_count: On a GPU, kernels that ran for a convolution, its conversions included; in a log of oneDNN,
            those beside one.
        convolution_seconds: Their time; None if not known.
        totals: In a recorded trace and on a GPU, the kernels added up in several ways; longest first.
    """

    count: Count
    seconds: NonNegativeSeconds | None
    conversion_count: Count
    conversion_seconds: NonNegativeSeconds | None
    share: Share | None
    conversions: tuple[Conversion, ...]
    not_understood_count: Count
    kernels: tuple[Kernel, ...] = ()
    sources: tuple[SourceKind, ...] = ()
    lacks: tuple[Lack, ...] = ()
    around_seconds: NonNegativeSeconds | None = None
    between_seconds: NonNegativeSeconds | None = None
    exposed_conversion_seconds: NonNegativeSeconds | None = None
    convolution_count: Count | None = None
    convolution_seconds: NonNegativeSeconds | None = None
    totals: tuple[Total, ...] = ()
    undecided_count: Count = 0
    undecided_seconds: NonNegativeSeconds | None = None
    waiting: Waiting | None = None
    creations: Creations | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all was recorded, and of each kernel it is known whether it converts a layout."""
        return not (self.lacks or self.undecided_count)


NO_KERNELS = KernelSummary(
    count=0,
    seconds=None,
    conversion_count=0,
    conversion_seconds=None,
    share=None,
    conversions=(),
    not_understood_count=0,
    lacks=(Lack(part="kernels", reason="the kernel list was not recorded"),),
)
"""The summary of a trial whose kernels were not recorded."""
