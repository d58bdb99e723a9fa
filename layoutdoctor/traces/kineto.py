"""
Reads the profiler's Chrome trace of one iteration: operations with shapes and strides, device kernels, memory.

Faces ``analysis``; no torch. Only what torch.profiler wrote in this process a moment ago is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

_SECONDS_PER_MICROSECOND = 1e-6
_SECONDS_PER_NANOSECOND = 1e-9


@dataclass(frozen=True)
class Operation:
    """
    One operation or annotated range on the host.

    Attributes:
        name: Such as ``aten::convolution``.
        start_seconds: Since the trace's base time, so that small differences keep their precision.
        seconds: Duration, children included.
        thread: Thread id, as text.
        shapes: Sizes of its arguments; empty entries for what is no tensor.
        strides: Strides of its arguments.
        sequence_number: Links an operation with the autograd node it made.
        external_id: Links device kernels with it.
        is_annotation: True for a ``record_function`` range.
    """

    name: str
    start_seconds: float
    seconds: float
    thread: str
    shapes: tuple[tuple[int, ...], ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    sequence_number: int | None = None
    external_id: int | None = None
    is_annotation: bool = False

    @property
    def end_seconds(self) -> float:
        """Its end, since the trace's base time."""
        return self.start_seconds + self.seconds


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel on a device: name, start since the base time, duration, stream, and the operation that launched it."""

    name: str
    start_seconds: float
    seconds: float
    stream: int | None
    external_id: int | None


@dataclass
class ProfiledIteration:
    """
    What the profiler recorded.

    Attributes:
        operations: Sorted by start, parents before their children.
        device_kernels: Sorted by start; empty on a CPU.
        base_seconds: Unix time the starts count from.
        not_understood_count: Events that could not be read.
    """

    operations: list[Operation] = field(default_factory=list)
    device_kernels: list[DeviceKernel] = field(default_factory=list)
    base_seconds: float = 0.0
    not_understood_count: int = 0


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: Any = None
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - the file's own name
    baseTimeNanoseconds: int = 0  # noqa: N815


def read_profiled_iteration(data: bytes) -> ProfiledIteration:
    """
    Parses a Chrome trace written by ``torch.profiler``.

    Args:
        data: The JSON text.

    Raises:
        msgspec.DecodeError: It is no JSON, or no trace.
    """
    document = msgspec.json.decode(data, type=_Document, strict=False)
    profile = ProfiledIteration(base_seconds=document.baseTimeNanoseconds * _SECONDS_PER_NANOSECOND)
    for event in document.traceEvents:
        if event.ph == "X":
            _read_event(profile, event)
    profile.operations.sort(key=lambda operation: (operation.start_seconds, -operation.seconds))
    profile.device_kernels.sort(key=lambda kernel: kernel.start_seconds)
    return profile


def _read_event(profile: ProfiledIteration, event: _Event) -> None:
    start, seconds = event.ts * _SECONDS_PER_MICROSECOND, event.dur * _SECONDS_PER_MICROSECOND
    if event.cat in ("cpu_op", "user_annotation"):
        profile.operations.append(
            Operation(
                name=event.name,
                start_seconds=start,
                seconds=seconds,
                thread=str(event.tid),
                shapes=_tuples(event.args.get("Input Dims")),
                strides=_tuples(event.args.get("Input Strides")),
                sequence_number=_integer(event.args.get("Sequence number")),
                external_id=_integer(event.args.get("External id")),
                is_annotation=event.cat == "user_annotation",
            )
        )
    elif event.cat == "kernel":
        stream, external = _integer(event.args.get("stream")), _integer(event.args.get("External id"))
        profile.device_kernels.append(DeviceKernel(event.name, start, seconds, stream, external))


def _tuples(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        tuple(item) if isinstance(item, list) and all(isinstance(size, int) for size in item) else () for item in value
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None
