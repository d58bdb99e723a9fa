"""The tree of operations that a profiler recorded on the host, and facts that their names give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis import FxNode
from layoutdoctor.examination.kernels.shapes import parse_shapes
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.shapes import Shape
    from layoutdoctor.recording.onednn import Primitive
    from layoutdoctor.recording.recording import Column, RecordedTrace

GRAPH_CALL = "## Call CompiledFxGraph"
"""Beginning of the name of the range around each call of a compiled graph; the graph's cache key follows."""


COMPILED_RANGES = ("Torch-Compiled Region", GRAPH_CALL)
"""Beginnings of names of ranges around compiled code; the compile id or the graph's cache key follows."""


GENERATED_PREFIX = "layoutdoctor::"
"""Annotated ranges around generated kernels are called ``layoutdoctor::<graph>::<kernel>``."""


_NO_OPERATOR = "autograd|torch|profiler|prim|layoutdoctor|c10d|_c10d_functional|symm_mem"


OPERATION = re.compile(rf"(?!(?:{_NO_OPERATOR})::)[A-Za-z_]\w*::\w")
"""Matches operators of any library, such as ``mkl::_mkl_linear``, but no ranges of autograd or the profiler."""


@dataclass(eq=False)
class HostOperation:
    """
    One operation or annotated range on the host, with its place in the call tree.

    Attributes:
        start_seconds: Start after the trace's base time, not Unix time, so that small differences keep their precision.
        seconds: Duration, children included.
        shapes: Sizes of its arguments; an entry is empty if the argument is no tensor.
        row: Row among the trace's operations; None for an annotated range (``record_function``).
        parent: The operation or range around this operation, on the same thread.
        primitives: oneDNN primitives that ran in this operation, but not in one of its children.
        node: The graph node that the operation ran; None if this is not certain.
        graph: Name of the node's graph; for the call of a compiled graph, the name of this graph.
        has_computed_weight: Whether the weight of a convolution is computed in the call instead of being a parameter.
    """

    name: str
    start_seconds: float
    seconds: float
    thread: str
    shapes: tuple[Shape, ...] = ()
    strides: tuple[Shape, ...] = ()
    row: int | None = None
    parent: HostOperation | None = None
    children: list[HostOperation] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    node: FxNode | None = None
    graph: str | None = None
    has_computed_weight: bool = False

    @property
    def end_seconds(self) -> float:
        """End after the trace's base time."""
        return self.start_seconds + self.seconds

    @property
    def self_seconds(self) -> float:
        """Duration without the durations of the children."""
        return max(0.0, self.seconds - sum(child.seconds for child in self.children))

    def around(self) -> Iterator[HostOperation]:
        """Yields this operation and the operations around it, the innermost first."""
        here: HostOperation | None = self
        while here is not None:
            yield here
            here = here.parent

    def joined(self) -> HostOperation:
        """The nearest operation with a known graph node, from this one outwards; this operation if no node is known."""
        return next((entry for entry in self.around() if entry.node is not None), self)

    def home(self) -> str | None:
        """Name of the graph that the operation ran in; None if this is not certain."""
        return next((entry.graph for entry in self.around() if entry.graph is not None), None)


def operation_tree(trace: RecordedTrace) -> list[HostOperation]:
    """The operations and annotated ranges of a trace with their nesting, sorted by start."""
    from layoutdoctor.recording.recording import NONE  # late: it imports numpy, which no saved diagnosis needs

    sizes = [(parse_shapes(known.shapes), parse_shapes(known.strides)) for known in trace.arguments]
    ranges, own = trace.annotations, trace.operations
    # Sorted by start, then by length: of two events with the same start, the longer one is the parent.
    found: list[tuple[int, int, HostOperation]] = []

    def add(name: int, start: int, duration: int, thread: int, **more: Any) -> None:
        seconds, moment = duration / NANOSECONDS_PER_SECOND, start / NANOSECONDS_PER_SECOND
        operation = HostOperation(trace.names[name], moment, seconds, " ".join(trace.threads[thread]), **more)
        found.append((start, -duration, operation))

    for times in _rows(ranges.name, ranges.start, ranges.duration, ranges.thread):
        add(*times)
    for row, times in enumerate(_rows(own.name, own.start, own.duration, own.thread)):
        arguments = int(own.arguments[row])
        shapes, strides = sizes[arguments] if arguments != NONE else ((), ())
        add(*times, shapes=shapes, strides=strides, row=row)
    found.sort(key=lambda item: item[:2])
    return nested(operation for _, _, operation in found)


def _rows(*columns: Column) -> Iterator[tuple[int, int, int, int]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def nested(operations: Iterable[HostOperation]) -> list[HostOperation]:
    """Links operations to parents and children. The operations must be sorted by start, parents before children."""
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
    """Unix time, in seconds, of the moment at which ``start_seconds`` of operations is 0."""
    base = trace.metadata.get("baseTimeNanoseconds")
    return ((base if isinstance(base, int) else 0) + trace.base_nanoseconds) / NANOSECONDS_PER_SECOND


def outermost_name(entry: HostOperation) -> str:
    """Name of the outermost operation around an operation: the operation that the caller asked for."""
    return [entry.name, *(one.name for one in entry.around() if OPERATION.match(one.name))][-1]


def is_backward(entry: HostOperation) -> bool:
    """Whether autograd ran an operation."""
    marks = ("autograd::engine::evaluate_function", "Backward")
    return any(one.name.startswith(marks[0]) or marks[1] in one.name for one in entry.around())
