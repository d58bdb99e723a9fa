"""Kernels of one iteration or recorded run, and their sums."""

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
    One entry of the kernel list of a profiled iteration or a recorded run.

    Attributes:
        name: Name of the device kernel, generated kernel, oneDNN primitive or leaf operation.
        seconds: Time of the kernel in a call: its median share of a call, over several iterations, times the call's
            time. In a recorded run, the recorded time.
        op: ATen operation that ran the kernel; None for a generated kernel.
        library: ``onednn``, ``inductor``, ``aten``, ``cudnn``...; None if not known.
        problem: The library's own description of the work, such as ``mb4_ic64oc64_ih56...``.
        implementation: The library's name of the code that it chose, such as ``brg_conv_fwd:avx512_core``.
        node: FX node, or eager operation, that ran it; None if it is not certain.
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
    A sum over the kernels that have one property in common; iterations on a CPU have no such sums.

    Attributes:
        kind: The property. ``possible``: names of kernels that may convert a layout; ``beside``: kinds of work for
            convolutions, other than convolving and layout conversion; ``moved``: kinds of other work that moves data,
            but not because of its layout.
        library: The library of the kernels; only for the kind ``kernel``, None if not known.
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
    The primitives that oneDNN created, as its log shows them; nested creations are left out.

    Attributes:
        count: Creations of primitives that were in no cache.
        distinct_count: Number of different primitives among these creations.
        hit_count: Primitives that were found in a cache.
        seconds: Time of all creations, including the look-ups that found a primitive in a cache.
        longest: The primitive whose creation took longest, with oneDNN's description.
        longest_seconds: Time of the longest creation.
    """

    count: Count
    distinct_count: Count
    hit_count: Count
    seconds: NonNegativeSeconds
    longest: str
    longest_seconds: NonNegativeSeconds


class Waiting(Record, frozen=True, kw_only=True):
    """
    The busy and idle time of a recorded run, or of an iteration of a diagnosis, and whether it waited for the host.

    Attributes:
        span_seconds: Time from the first start to the last end of work on the device; the time of all profiler steps if
            this is longer. In a diagnosis, the time of a call in the timing rounds.
        busy_seconds: Time in which a kernel or a copy ran on the device; if there are several, on the busiest device.
        device_count: Number of devices that ran work.
        collective_seconds: Time of collective kernels, such as NCCL's, which wait for other devices.
        copy_seconds: Time of copies and fills by the device's own engines.
        step_count: Number of profiler steps in which the device ran work; None if no steps were recorded.
        step_seconds: Median time of a profiler step; None if no steps were recorded.
        conversion_bound_seconds: Upper bound of the cost of layout conversions in one profiler step, or in the whole
            run without steps: the time in which only conversions, or kernels that may convert a layout, ran. The real
            cost is less if the step waited for the host.
        launch_lag_seconds: Median time from launch to start of kernels, without collectives; None if not recorded.
        waits_for: ``device`` if the device was busy nearly always; ``host`` if the device was hardly busy, or was idle
            for much of the time and started kernels soon after their launch; None if neither is certain.
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
    The kernels of one warm, profiled iteration, or of a whole recorded trace.

    Attributes:
        count: Number of kernels.
        seconds: Sum of the kernels' times; not the wall time. None if not recorded, or if the times have no sum.
        around_seconds: Time on a CPU within calls of a library but outside its kernels; None if not recorded.
        between_seconds: Time of a call in which neither a kernel nor a library's call runs; None if not recorded.
        conversion_count: Library conversions that change a layout (direction other than ``none``).
        share: ``conversion_seconds`` divided by ``seconds``; None if no kernel was recorded.
        conversions: Every library conversion kernel and every oneDNN ``reorder``, including direction ``none``.
        not_understood_count: Lines and events that could not be read, or conversions that could not be described.
        kernels: The kernels in order; on a GPU and for a trace, the first 20,000. Empty for a table of totals.
        lacks: The facts that could not be recorded.
        undecided_count: Number of kernels that may convert a layout; no other count of conversions includes them.
        creations: The primitives that were created, from a log of oneDNN; None if the log has no lines of creations.
        waiting: Busy and idle time of a recorded trace or an iteration on a GPU; None elsewhere.
        exposed_conversion_seconds: Part of ``conversion_seconds`` in which nothing else ran on the device, so that the
            run had to wait for the conversions; only on a GPU.
        convolution_count: Number of kernels on a GPU that ran for a convolution, including its conversions; in a log of
            oneDNN, number of primitives that ran for a convolution.
        convolution_seconds: Time of the kernels or primitives in ``convolution_count``; None if not known.
        totals: Sums over the kernels by several properties, longest first for each; empty for an iteration on a CPU.
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
        """Whether all facts were recorded, and it is known for each kernel whether it converts a layout."""
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
