"""
Makes the kernel list of one profiled iteration on a CPU, from the profiler's operations and oneDNN's log.

A CPU's trace has no kernels. Here a kernel is an executed oneDNN primitive, a generated Inductor kernel, or an
operation that moves or computes elements in its own code. For a GPU see ``device``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Conversion, Kernel, KernelSummary, Lack, SourceKind
from layoutdoctor.examination.kernels.operations import (
    COMPILED_RANGES,
    GENERATED_PREFIX,
    OPERATION,
    HostOperation,
    base_seconds,
    is_backward,
    operation_tree,
    outermost_name,
)
from layoutdoctor.examination.kernels.placing import add_primitive
from layoutdoctor.examination.kernels.primitives import annotate_sequence, describe
from layoutdoctor.examination.kernels.sums import lost_count, summarize
from layoutdoctor.examination.where import where
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds
from layoutdoctor.words import count_of, distinct, listing

if TYPE_CHECKING:
    from layoutdoctor.recording.onednn import OnednnLog, Primitive
    from layoutdoctor.recording.recording import RecordedTrace


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_NOT_KERNELS = _aten(
    "empty empty_like empty_strided new_empty new_empty_strided as_strided as_strided_ resize_ resize resize_as_ "
    "set_ view _unsafe_view reshape _reshape_alias expand permute transpose t squeeze unsqueeze slice select "
    "narrow detach detach_ alias unflatten flatten chunk split unbind result_type is_floating_point lift_fresh "
    "_has_compatible_shallow_copy_type view_as expand_as movedim diagonal unfold real imag "
    "qscheme q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points q_per_channel_axis "
    "_empty_affine_quantized _empty_per_channel_affine_quantized"
)
"""Operations that allocate or describe a tensor and move no element."""


_COMPUTING_THEMSELVES = _aten(
    "addmm addmm_ addmv addmv_ addr baddbmm baddbmm_ bmm mm dot _slow_conv2d_forward _slow_conv2d_backward "
    "slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d "
    "glu_backward _embedding_bag_dense_backward _linalg_svd linalg_lu_solve"
)
"""Operations that compute in their own code, although they call other operations that compute too."""


CONVOLUTION_BACKWARD = "aten::convolution_backward"
"""Computes in ATen's own code unless it runs a primitive or calls a computing operation (except for the bias)."""


_PREPARING = _aten(
    "fill_ zero_ zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor arange "
    "copy_ clone contiguous to _to_copy reshape"
)
"""Operations that another operation calls to fill its output or copy its input, before it computes."""


_ONLY_PREPARING = _PREPARING | _aten(
    "_reshape_copy flatten type_as pad constant_pad_nd _pad_enum _pad_circular repeat tile expand_copy "
    "slice_backward select_backward slice_scatter select_scatter as_strided_scatter resolve_conj resolve_neg"
)
"""Operations that call operations of ``_PREPARING`` and compute nothing themselves."""


_NEVER_ALONE = _aten("to contiguous reshape flatten type_as resolve_conj resolve_neg dropout")
"""Operations that return their input, unless they call an operation that moves its elements."""


_OPAQUE = re.compile(r"(?!aten::|prims?::)\w+::(?!\w*pack)\w*conv(?!ert)")
"""Convolutions of other libraries, such as FBGEMM's ``quantized::conv2d``, which may convert their inputs."""


def summarize_host(
    tree: Sequence[HostOperation],
    trace: RecordedTrace,
    log: OnednnLog | None,
    unplaced: Sequence[Primitive],
    lacks: Sequence[Lack],
) -> KernelSummary:
    """
    The kernel list of an iteration on a CPU.

    Args:
        unplaced: Primitives of the iteration that belong to no operation.
    """
    kernels: list[Kernel] = []
    conversions: list[Conversion] = []
    origin = min((entry.start_seconds for entry in tree), default=0.0)
    base = base_seconds(trace) + origin
    for entry in tree:
        for item in annotate_sequence(entry.primitives):
            add_primitive(kernels, conversions, item, entry, base)
        if not entry.primitives and _is_kernel(entry):
            kernels.append(_host_kernel(entry, origin))
    for primitive in unplaced:
        add_primitive(kernels, conversions, describe(primitive), None, base)
    kernels.sort(key=lambda kernel: kernel.start_seconds or 0.0)
    unread = lost_count(trace)
    sources: list[SourceKind] = ["profiler"]
    if log is not None:
        unread += len(log.not_understood)
        sources.append("onednn_log")
    opaque = [kernel for kernel in kernels if kernel.library == "aten" and _OPAQUE.match(kernel.name)]
    if not opaque:
        return summarize(kernels, conversions, unread, sources, lacks)
    seconds, names = sum(kernel.seconds or 0.0 for kernel in opaque), distinct(kernel.name for kernel in opaque)
    calls = f"{listing(names)} ({count_of(len(opaque), 'call')}, {format_seconds(seconds)})"
    lack = Lack(part="kernels_of_library", reason=f"conversions within {calls}: no log of its library shows them")
    summary = summarize(kernels, conversions, unread, sources, (*lacks, lack))
    return msgspec.structs.replace(summary, undecided_count=len(opaque), undecided_seconds=seconds)


def working_seconds(tree: Sequence[HostOperation]) -> float:
    """Time in operations that compute, or ran a oneDNN primitive; of nested operations, only the outermost counts."""
    working = {id(entry) for entry in tree if entry.primitives or _is_kernel(entry)}
    outermost = (
        entry
        for entry in tree
        if id(entry) in working and not any(id(one) in working for one in entry.around() if one is not entry)
    )
    return sum(entry.seconds for entry in outermost)


def _is_kernel(entry: HostOperation) -> bool:
    """Whether an operation that ran no primitive moves or computes elements in its own code."""
    if not _may_work(entry):
        return False
    working = {child.name for child in entry.children if _works(child)}
    if entry.name == CONVOLUTION_BACKWARD:
        working -= {"aten::sum", "aten::add_"}  # the bias's gradient; ATen's own code computes the others
    if not working or entry.name in _COMPUTING_THEMSELVES:
        return entry.name not in _NEVER_ALONE
    return entry.name not in _ONLY_PREPARING and _PREPARING.issuperset(working)


def _works(entry: HostOperation) -> bool:
    """Whether an operation, or an operation that it calls, moves or computes elements."""
    return (
        bool(entry.primitives)
        or any(map(_works, entry.children))
        or (_may_work(entry) and entry.name not in _NEVER_ALONE)
    )


def _may_work(entry: HostOperation) -> bool:
    return entry.name.startswith(GENERATED_PREFIX) or (entry.row is not None and moves_elements(entry.name))


def moves_elements(name: str) -> bool:
    """Whether the operation of this name does more than allocate or describe a tensor."""
    return OPERATION.match(name) is not None and name not in _NOT_KERNELS


def _host_kernel(entry: HostOperation, origin: float) -> Kernel:
    generated = entry.name.startswith(GENERATED_PREFIX)
    joined = entry.joined()
    graph = entry.name.removeprefix(GENERATED_PREFIX).rsplit("::", 1)[0] if generated else None
    return Kernel(
        name=entry.name.rsplit("::", 1)[1] if generated else entry.name,
        seconds=entry.seconds if generated else entry.self_seconds,
        start_seconds=entry.start_seconds - origin,
        op=None if generated else outermost_name(entry),
        library="inductor" if generated else "aten",
        backward=is_backward(entry),
        node=where(joined.node).node,
        graph=joined.graph or graph,
    )


def with_operations_as_kernels(trace: RecordedTrace) -> RecordedTrace:
    """
    Makes a kernel of each operation in a CPU's trace that moves or computes elements, with the operation's self time.

    Returns:
        The trace with these kernels. The trace itself if compiled code ran: its generated kernels are not in the trace,
        and a kernel list without them would only look complete.
    """
    import numpy as np  # late, as in operation_tree

    from layoutdoctor.recording.recording import NONE, KernelEvents

    if any(name.startswith(COMPILED_RANGES) for name in trace.names):
        return trace
    tree = operation_tree(trace)
    entries = [entry for entry in tree if entry.row is not None and _is_kernel(entry)]
    rows = np.array([entry.row for entry in entries], np.int64)
    seconds = np.array([entry.self_seconds for entry in entries], np.float64)
    operations, unknown = trace.operations, np.full(len(rows), NONE, np.int64)
    kernels = KernelEvents(
        name=operations.name[rows],
        start=operations.start[rows],
        duration=np.rint(seconds * NANOSECONDS_PER_SECOND).astype(np.int64),
        device=np.zeros(len(rows), np.int64),
        stream=operations.thread[rows],
        correlation=unknown,
        external=rows + 1,  # 0 would mean that the kernel has no operation
        grid=unknown,
        process=np.zeros(len(rows), np.int64),
    )
    operations = replace(operations, external=np.arange(1, len(operations) + 1))
    return replace(trace, source="kineto_operations", kernels=kernels, operations=operations)
