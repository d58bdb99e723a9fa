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
    One layout conversion: a kernel, a part of a kernel, or a step inside a library.

    Attributes:
        id: Unique within its trial.
        direction: The kind of change; ``none`` if data is moved but the layout does not change (1-D, a cast).
        seconds: Time in the profiled iteration or the recorded run, measured or estimated; see ``seconds_source``.
        bytes_moved: Bytes read plus bytes written, without padding.
        fused: Whether the loop that converts also computes, so that the conversion itself costs little. False for a
            loop that only moves data, even if its kernel runs other loops, too.
        bandwidth_share: Bytes moved per second divided by the device's copy bandwidth; 0 to 1 or a little above.
        dtype: Element type before the conversion, such as ``"float32"``; in oneDNN's spelling (``"f32"``) for reorders.
        graph: Name of the trial's graph that has ``node``.
        port: The tensor of ``node`` that was converted: ``input 0``, ``output 0``...; None if it is not certain.
        target_dtype: Element type after the conversion if it also casts; None if the type stays the same.
        cause: Cause of the conversion, in words: the line that asked for it, or the operation that needs its layout.
        purpose: ``gradient_strides`` if autograd copies a gradient into the strides of its parameter.
        role: ``entry`` for a graph input, ``exit`` for a conversion to the caller's strides, ``interior`` for others;
            None for a weight, and if not known.
        required_by: FX nodes that read the converted value and accept no other layout.
        value: Inductor buffer, or eager operation, whose result is the converted value.
        source_value: Inductor buffer, node or graph input from which the value was converted.
        seconds_source: ``measured``, or ``estimated`` from ``bytes_moved`` and the device's measured copy bandwidth.
        count: Number of launches that this record adds up; above 1 only if a table of totals was recorded.
        confidence: Evidence for the direction and tensor of a GPU kernel: ``shapes`` that the operation recorded, the
            launch ``grid``, or only the ``order`` of kernels. None without such evidence.
        of_batch: True if the launch grid shows an activation or its gradient, False if it shows a weight or its
            gradient; None if the grid does not decide.
        exposed_seconds: Part of ``seconds`` in which nothing else ran on the device; only on a GPU.
        step: Profiler step of a recorded trace in which the conversion ran, such as ``ProfilerStep#3``.
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
    # A default from a factory is written to JSON in spite of omit_defaults: the contract requires these fields.
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
        """Number of dimensions of the tensor that is read; None if not recorded."""
        return len(self.source.shape) if self.source is not None else None


class RedundantPair(Record, frozen=True, kw_only=True):
    """
    Two conversions that undo each other. Times and bytes are sums that include the conversions in ``also``.

    Attributes:
        kind: ``adjacent`` (nothing between) or ``through`` (layout-agnostic operations between).
        evidence: ``graph`` if the buffers of a graph show the pair, ``kernels`` if the kernel list is needed.
        first: Id of the conversion from layout A to layout B.
        second: Id of the conversion from layout B to layout A.
        between: Operations between the two conversions, in order.
        seconds: Time of the conversions. A conversion that is fused into a loop that computes is left out.
        location: The user's line of the second conversion or of the operation before it; if not known, of the first.
        module: Path of the nn.Module of the second conversion's operation; if not known, of the first conversion's.
        proof: Reason why the pair may be removed: which operations read the result, and that no operation between the
            two conversions requires the layout.
        also: Ids of further conversions that the second conversion undoes together with the first, such as the other
            branches of a concatenation.
        seconds_source: Whether ``seconds`` was measured or estimated from bytes; None if there are no seconds.
        confidence: Evidence in a recorded trace that both convert the same value: ``shapes`` if all shapes between them
            agree, ``grid`` if only their launch grids agree, ``order`` if only the order of kernels is known. None
            otherwise.
        exposed_seconds: Part of ``seconds`` in which nothing else ran on the device; only on a GPU.
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
