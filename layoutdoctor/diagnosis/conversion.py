"""Layout conversions and redundant pairs."""

from __future__ import annotations

from types import NoneType
from typing import Literal

import msgspec

from layoutdoctor.diagnosis.layout import Layout, Size
from layoutdoctor.diagnosis.record import Count, Integer, Magnitude, Moment, NonNegativeSeconds, Record
from layoutdoctor.diagnosis.subject import SourceLocation

Owner = Literal["user", "compiler", "library", "framework"]
ConversionDirection = Literal["to_channels_last", "to_contiguous", "to_blocked", "from_blocked", "other", "none"]
TensorKind = Literal["activation", "weight", "gradient", "unknown"]
ConversionRole = Literal["entry", "exit", "interior"]
CostSource = Literal["measured", "estimated"]
ConversionPurpose = Literal["gradient_strides"]
Confidence = Literal["shapes", "grid", "order"]


class Conversion(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One layout conversion: a kernel, a part of one, or a step inside a library.

    Attributes:
        id: Unique within its trial.
        direction: The kind of change; ``none`` for one that moves data without changing the layout (1-D, a cast).
        seconds: Measured time in the profiled iteration.
        bytes_moved: Bytes read plus bytes written, without padding.
        fused: True if the loop that makes it computes as well, so that it costs little of its own. A loop that only
            moves is a conversion of its own, also where its kernel runs other loops.
        bandwidth_share: Bytes per second reached over the device's copy bandwidth, 0 to 1 or a little above.
        dtype: Element type before, such as ``"f32"``.
        graph: Name of the trial's graph that has ``node``.
        port: Which tensor of that node was converted: ``input 0``, ``output 0``...; None if that is not certain.
        target_dtype: Element type after, where a cast travels with the conversion; None if it stays the same.
        cause: Why it is there, in words: whose line asked for it, or what needs the layout it makes.
        purpose: ``gradient_strides`` if autograd copies a gradient into the strides of its parameter.
        role: ``entry`` of a graph input, ``exit`` to the caller's strides, ``interior`` between; None if not known.
        required_by: FX nodes that read the converted value and accept it in no other layout.
        value: Inductor buffer, or eager operation, whose result is the converted value.
        source_value: Inductor buffer or graph input that it was converted from.
        seconds_source: ``measured``, or ``estimated`` from ``bytes_moved`` and the device's measured copy bandwidth.
        count: The launches added up in this entry: more than 1 only if a table of totals was recorded.
        confidence: Of a kernel on a GPU, what its direction and tensor rest on: ``shapes`` that the operation recorded,
            the launch ``grid``, or the ``order`` of kernels alone; None elsewhere, and where only the name is known.
        of_batch: By the launch grid alone: True for an activation or its gradient, False for a weight or its gradient.
        exposed_seconds: On a GPU, the part of ``seconds`` in which nothing else ran on the device.
        step: In a recorded trace, the profiler's step it ran in, such as ``ProfilerStep#3``.
    """

    id: str
    owner: Owner
    kernel: str | None
    node: str | None
    op: str | None
    location: SourceLocation | None
    module: str | None
    source: Layout | None
    target: Layout | None
    direction: ConversionDirection
    tensor: TensorKind
    seconds: NonNegativeSeconds | None
    bytes_moved: Count | None
    # Made by a factory, a default is written all the same: the contract names these.
    fused: bool = msgspec.field(default_factory=bool)
    stream: Integer | None = msgspec.field(default_factory=NoneType)
    start_seconds: Moment | None = msgspec.field(default_factory=NoneType)
    bandwidth_share: Magnitude | None = msgspec.field(default_factory=NoneType)
    dtype: str | None = None
    graph: str | None = None
    port: str | None = None
    target_dtype: str | None = None
    cause: str | None = None
    purpose: ConversionPurpose | None = None
    role: ConversionRole | None = None
    required_by: tuple[str, ...] = ()
    value: str | None = None
    source_value: str | None = None
    seconds_source: CostSource | None = None
    count: Count = 1
    confidence: Confidence | None = None
    of_batch: bool | None = None
    exposed_seconds: NonNegativeSeconds | None = None
    step: str | None = None

    @property
    def rank(self) -> int | None:
        """The number of dimensions of what it reads; None if not recorded."""
        return len(self.source.shape) if self.source is not None else None


class RedundantPair(Record, frozen=True, kw_only=True):
    """
    Two conversions that undo each other; times and bytes are of both together.

    Attributes:
        kind: ``adjacent`` (nothing between) or ``through`` (layout-agnostic operations between).
        evidence: Whether the graph or the kernel list proves it.
        first: Id of the conversion A to B.
        second: Id of the conversion B to A.
        between: Operations between the two, in order.
        location: The user's line of the second one's operation, else of the first's.
        module: Path of the nn.Module of the same.
        proof: Why it may go: which consumers there are, and that nothing pins the layout between.
        also: Ids of further conversions that go with the first one, such as the other branches of a concatenation.
        seconds_source: Whether ``seconds`` was measured or estimated from bytes; None if there are no seconds.
        confidence: In a recorded trace, what says that both convert the same value: ``shapes`` agree all along the way,
            only the launch ``grid`` of both agrees, or nothing but the ``order`` of kernels; None elsewhere.
        exposed_seconds: On a GPU, the part of ``seconds`` in which nothing else ran on the device.
    """

    kind: Literal["adjacent", "through"]
    evidence: Literal["graph", "kernels"]
    first: str
    second: str
    between: tuple[str, ...]
    seconds: NonNegativeSeconds | None
    bytes_moved: Count | None
    location: SourceLocation | None
    module: str | None
    proof: str | None = None
    tensor_shape: tuple[Size, ...] | None = None
    also: tuple[str, ...] = ()
    seconds_source: CostSource | None = None
    graph: str | None = None
    confidence: Confidence | None = None
    exposed_seconds: NonNegativeSeconds | None = None
