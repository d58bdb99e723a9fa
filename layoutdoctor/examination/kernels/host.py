"""
The kernel list of one profiled iteration, merged from the profiler's operations and oneDNN's log, in order.

A CPU has no kernels of its own: here a kernel is an executed oneDNN primitive, a generated Inductor kernel, or an ATen
operation that computes and calls no other one that does. For a GPU see ``device``.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.conversion import Conversion
from layoutdoctor.diagnosis.kernel import Kernel, KernelSummary
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.examination.kernels.primitives import annotate_sequence, describe
from layoutdoctor.examination.kernels.shapes import parse_shapes
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds
from layoutdoctor.words import count_of, distinct, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.kernel import SourceKind
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive
    from layoutdoctor.examination.kernels.shapes import Shape
    from layoutdoctor.recording.onednn import OnednnLog, Primitive
    from layoutdoctor.recording.recording import Column, KernelTotals, RecordedTrace

GRAPH_CALL = "## Call CompiledFxGraph"
"""The beginning of the range around each call of a compiled graph; its key in the cache follows."""

COMPILED_RANGES = ("Torch-Compiled Region", GRAPH_CALL)
"""Beginnings of the ranges around compiled code; the compile id, or the key in the cache, follows."""

GENERATED_PREFIX = "layoutdoctor::"
"""Annotated ranges around generated kernels are called ``layoutdoctor::<graph>::<kernel>``."""


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
"""If it runs no primitive and calls no operation that computes, it computes in ATen's own code, under this name."""

_PREPARING = _aten(
    "fill_ zero_ zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor arange "
    "copy_ clone contiguous to _to_copy reshape"
)
"""Operations that another one calls to fill its output, or to copy its input, before it computes."""

_ONLY_PREPARING = _PREPARING | _aten(
    "_reshape_copy flatten type_as pad constant_pad_nd _pad_enum _pad_circular repeat tile expand_copy "
    "slice_backward select_backward slice_scatter select_scatter as_strided_scatter resolve_conj resolve_neg"
)
"""Operations that compute nothing themselves: the operations of ``_PREPARING`` that run in them do the work."""

_NEVER_ALONE = _aten("to contiguous reshape flatten type_as resolve_conj resolve_neg dropout")
"""Operations that return their input, unless they call an operation that moves its elements."""

_OPAQUE = re.compile(r"(?!aten::|prims?::)\w+::(?!\w*pack)\w*conv(?!ert)")
"""Convolutions of other libraries, such as FBGEMM's ``quantized::conv2d``, which may convert their inputs."""

_NO_OPERATOR = "autograd|torch|profiler|prim|layoutdoctor|c10d|_c10d_functional|symm_mem"
_OPERATION = re.compile(rf"(?!(?:{_NO_OPERATOR})::)[A-Za-z_]\w*::\w")
"""Names of any library's operators, such as ``mkl::_mkl_linear``, but not of ranges of autograd or the profiler."""


@dataclass(eq=False)
class HostOperation:
    """
    One operation or annotated range on the host, with its place in the call tree.

    Attributes:
        start_seconds: Since the trace's base time, so that small differences keep their precision.
        seconds: Duration, children included.
        shapes: Sizes of its arguments; an entry is empty if the argument is no tensor.
        external_id: The External id, by which device kernels refer to it.
        row: Its row among the trace's operations; None for an annotated range (``record_function``).
        parent: The operation it was called from, on the same thread.
        primitives: oneDNN primitives that ran in it and in none of its children.
        node: The graph node that it ran, if that is certain.
        graph: Name of the node's graph, or of the compiled graph if this is its call.
        has_computed_weight: For a convolution: whether its weight is no parameter, but computed in the call.
    """

    name: str
    start_seconds: float
    seconds: float
    thread: str
    shapes: tuple[Shape, ...] = ()
    strides: tuple[Shape, ...] = ()
    external_id: int | None = None
    row: int | None = None
    parent: HostOperation | None = None
    children: list[HostOperation] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    node: FxNode | None = None
    graph: str | None = None
    has_computed_weight: bool = False

    @property
    def end_seconds(self) -> float:
        """Its end, since the trace's base time."""
        return self.start_seconds + self.seconds

    @property
    def self_seconds(self) -> float:
        """Its duration without its children's."""
        return max(0.0, self.seconds - sum(child.seconds for child in self.children))

    def around(self) -> Iterator[HostOperation]:
        """This operation and those around it, from the inside out."""
        here: HostOperation | None = self
        while here is not None:
            yield here
            here = here.parent

    def joined(self) -> HostOperation | None:
        """This operation, or the nearest one around it, whose graph node is known."""
        return next((entry for entry in self.around() if entry.node is not None), None)

    def home(self) -> str | None:
        """Name of the graph that it ran in, if that is certain."""
        return next((entry.graph for entry in self.around() if entry.graph is not None), None)


def operation_tree(trace: RecordedTrace) -> list[HostOperation]:
    """The operations and annotated ranges of a trace with their nesting, sorted by start."""
    from layoutdoctor.recording.recording import NONE  # late: it brings numpy, which no saved diagnosis needs

    sizes = [(parse_shapes(known.shapes), parse_shapes(known.strides)) for known in trace.arguments]
    ranges, own = trace.annotations, trace.operations
    # Sorted by nanoseconds, longer events first: of two that start together, the longer one is the parent.
    found: list[tuple[int, int, HostOperation]] = []

    def add(name: int, start: int, duration: int, thread: int, **more: Any) -> None:
        seconds, moment = duration / NANOSECONDS_PER_SECOND, start / NANOSECONDS_PER_SECOND
        operation = HostOperation(trace.names[name], moment, seconds, " ".join(trace.threads[thread]), **more)
        found.append((start, -duration, operation))

    for times in _rows(ranges.name, ranges.start, ranges.duration, ranges.thread):
        add(*times)
    for row, times in enumerate(_rows(own.name, own.start, own.duration, own.thread)):
        external, arguments = int(own.external[row]), int(own.arguments[row])
        shapes, strides = sizes[arguments] if arguments != NONE else ((), ())
        add(*times, shapes=shapes, strides=strides, external_id=external if external != NONE else None, row=row)
    found.sort(key=lambda item: item[:2])
    return nested(operation for _, _, operation in found)


def _rows(*columns: Column) -> Iterator[tuple[int, int, int, int]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def nested(operations: Iterable[HostOperation]) -> list[HostOperation]:
    """Operations that are sorted by start, parents before their children, with the links between them."""
    open_by_thread: dict[str, list[HostOperation]] = {}
    tree = list(operations)
    for entry in tree:
        stack = open_by_thread.setdefault(entry.thread, [])
        while stack and stack[-1].end_seconds <= entry.start_seconds:
            stack.pop()
        if stack:
            entry.parent = stack[-1]
            stack[-1].children.append(entry)
        stack.append(entry)
    return tree


def base_seconds(trace: RecordedTrace) -> float:
    """Unix time in seconds from which the starts of the operations count."""
    base = trace.metadata.get("baseTimeNanoseconds")
    return ((base if isinstance(base, int) else 0) + trace.base_nanoseconds) / NANOSECONDS_PER_SECOND


def lost_count(events: RecordedTrace | KernelTotals) -> int:
    """How many events or lines could not be read."""
    return sum(problem.count for problem in events.problems if problem.is_loss)


def place_primitives(tree: Sequence[HostOperation], log: OnednnLog, base: float) -> list[Primitive]:
    """
    Puts each primitive into the innermost operation that ran it.

    Args:
        base: From ``base_seconds``.

    Returns:
        The primitives that ran in no known operation: all of them if the log has no timestamps.
    """
    starts = [entry.start_seconds for entry in tree]
    homeless: list[Primitive] = []
    for primitive in log.primitives:
        moment = (primitive.start_seconds or 0.0) - base + _CLOCK_RESOLUTION_SECONDS
        home = _innermost(tree, starts, moment)
        (home.primitives if home is not None else homeless).append(primitive)
    return homeless


_CLOCK_RESOLUTION_SECONDS = 1e-6
"""oneDNN prints microseconds; a primitive never starts within the first microsecond of its operation."""


def _innermost(tree: Sequence[HostOperation], starts: Sequence[float], moment: float) -> HostOperation | None:
    index = bisect.bisect_right(starts, moment) - 1
    around = tree[index].around() if index >= 0 else ()
    running = (entry for entry in around if entry.end_seconds >= moment)
    return next((entry for entry in running if _OPERATION.match(entry.name)), None)


def summarize_host(
    tree: Sequence[HostOperation],
    trace: RecordedTrace,
    log: OnednnLog | None,
    homeless: Sequence[Primitive],
    lacks: Sequence[Lack],
) -> KernelSummary:
    """
    The kernel list of an iteration on a CPU.

    Args:
        homeless: Its primitives that belong to no operation.
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
    for primitive in homeless:
        add_primitive(kernels, conversions, describe(primitive), None, base)
    kernels.sort(key=lambda kernel: kernel.start_seconds or 0.0)
    unread = lost_count(trace) + (len(log.not_understood) if log is not None else 0)
    sources: tuple[SourceKind, ...] = ("profiler", "onednn_log") if log is not None else ("profiler",)
    opaque = [kernel for kernel in kernels if kernel.library == "aten" and _OPAQUE.match(kernel.name)]
    if not opaque:
        return summarize(kernels, conversions, unread, sources, lacks)
    seconds, names = sum(kernel.seconds or 0.0 for kernel in opaque), distinct(kernel.name for kernel in opaque)
    calls = f"{listing(names)} ({count_of(len(opaque), 'call')}, {format_seconds(seconds)})"
    lack = Lack(part="kernels_of_library", reason=f"conversions within {calls}: no log of its library shows them")
    summary = summarize(kernels, conversions, unread + len(opaque), sources, (*lacks, lack))
    return msgspec.structs.replace(summary, undecided_count=len(opaque), undecided_seconds=seconds)


def summarize(
    kernels: Sequence[Kernel],
    conversions: Sequence[Conversion],
    not_understood: int,
    sources: tuple[SourceKind, ...],
    lacks: Sequence[Lack],
) -> KernelSummary:
    """
    Counts and sums of a kernel list.

    Args:
        conversions: The conversions among the kernels, also those that change no layout.
        not_understood: Number of lines and events that could not be read; conversions of unknown layouts are added.
    """
    not_understood += sum(conversion.source is None or conversion.target is None for conversion in conversions)
    real = [conversion for conversion in conversions if conversion.direction != "none"]
    seconds = sum(kernel.seconds or 0.0 for kernel in kernels)
    spent = sum(conversion.seconds or 0.0 for conversion in real)
    return KernelSummary(
        count=len(kernels),
        seconds=seconds,
        conversion_count=len(real),
        conversion_seconds=spent,
        share=min(1.0, spent / seconds) if seconds > 0 else None,
        conversions=tuple(conversions),
        not_understood_count=not_understood,
        kernels=tuple(kernels),
        sources=sources,
        lacks=tuple(lacks),
    )


def working_seconds(tree: Sequence[HostOperation]) -> float:
    """Time in operations that compute, or that ran a primitive of oneDNN; of nested ones the outermost counts."""
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
    return _OPERATION.match(name) is not None and name not in _NOT_KERNELS


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
        node=joined.node.name if joined is not None and joined.node is not None else None,
        graph=graph if joined is None else joined.graph,
    )


def with_operations_as_kernels(trace: RecordedTrace) -> RecordedTrace | None:
    """
    A CPU's trace with the operations that move or compute elements as its kernels, each with its self time.

    Returns:
        None if compiled code ran: the trace lacks its generated kernels, so the kernel list would only look complete.
    """
    import numpy as np  # late, as in operation_tree

    from layoutdoctor.recording.recording import NONE, KernelEvents

    if any(name.startswith(COMPILED_RANGES) for name in trace.names):
        return None
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
        external=rows + 1,  # 0 means none
        grid=unknown,
        process=np.zeros(len(rows), np.int64),
    )
    operations = replace(operations, external=np.arange(1, len(operations) + 1))
    return replace(trace, source="kineto_operations", kernels=kernels, operations=operations)


def outermost_name(entry: HostOperation) -> str:
    """Name of the outermost operation that an operation ran in: the one that the caller asked for."""
    return [entry.name, *(one.name for one in entry.around() if _OPERATION.match(one.name))][-1]


def is_backward(entry: HostOperation) -> bool:
    """Whether autograd ran an operation."""
    marks = ("autograd::engine::evaluate_function", "Backward")
    return any(one.name.startswith(marks[0]) or marks[1] in one.name for one in entry.around())


def add_primitive(
    kernels: list[Kernel],
    conversions: list[Conversion],
    item: AnnotatedPrimitive,
    entry: HostOperation | None,
    origin_unix: float,
) -> None:
    """
    Puts a primitive into the kernel list, and a reorder among the conversions as well.

    Args:
        origin_unix: Unix time in seconds from which starts in the list count.
    """
    primitive = item.primitive
    start = None if primitive.start_seconds is None else max(0.0, primitive.start_seconds - origin_unix)
    joined = entry.joined() if entry is not None else None
    node = joined.node if joined is not None else None
    op = entry.name if entry is not None else None
    is_computed = joined is not None and joined.has_computed_weight and item.tensor == "weight"
    node_name, graph = (node.name if node is not None else None), (joined.graph if joined is not None else None)
    kernels.append(
        Kernel(
            name=primitive.kind,
            seconds=primitive.seconds,
            start_seconds=start if start is not None or entry is None else entry.start_seconds,
            op=op,
            library="onednn",
            problem=primitive.problem,
            implementation=primitive.implementation,
            backward=is_backward(entry) if entry is not None else primitive.prop_kind.startswith("backward"),
            node=node_name,
            graph=graph,
        )
    )
    if primitive.kind != "reorder":
        return
    conversions.append(
        Conversion(
            id=f"reorder {len(conversions)}",
            owner="library",
            kernel=f"reorder {primitive.implementation}",
            node=node_name,
            op=op,
            location=node.location if node is not None else None,
            module=node.module if node is not None else None,
            source=item.source,
            target=item.target,
            direction=item.direction,
            tensor="activation" if is_computed else item.tensor,
            seconds=primitive.seconds,
            bytes_moved=item.bytes_moved,
            start_seconds=start,
            dtype=item.dtype,
            graph=graph,
            port=item.port if joined is not None else None,
            cause=f"{op} runs in a format of its own" if node is not None else None,
            required_by=(node.name,) if node is not None else (),
            seconds_source="measured",
        )
    )
