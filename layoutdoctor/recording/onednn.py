"""
Reads oneDNN's verbose log: one line per executed primitive.

The profiler shows none of what a primitive does inside an operation; this log is the only record of a ``reorder`` on a
CPU.

Source:
    oneDNN developer guide, "Verbose Mode"; lines of oneDNN 2.x to 3.12, with and without timestamps.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from layoutdoctor.diagnosis.layout import Layout, blocked_layout, dense_stride, strided_layout
from layoutdoctor.words import DTYPES, item_bytes

# A launcher may write something in front: blanks, [0], [rank0]:, or a name with a colon.
VERBOSE_LINE = re.compile(
    r"^[ \t]{0,40}(?:\[[^\]\n]{1,60}\]:?[ \t]{0,3}|[\w.-]{1,60}:[ \t]{1,3})?(?=(?:onednn|dnnl|mkldnn)_verbose,)",
    re.MULTILINE,
)
_SECONDS_PER_MILLISECOND = 1e-3
_SIZES = re.compile(r"^[0-9]{1,18}(?:x[0-9]{1,18}){0,11}\Z")  # oneDNN has at most 12 dimensions
_PLAIN_TAG = re.compile(r"^[a-l]+$")


@dataclass(frozen=True)
class MemoryDescriptor:
    """
    One tensor of a primitive.

    Attributes:
        role: ``src``, ``wei``, ``bia``, ``dst``, ``diff_src``... as printed.
        dtype: oneDNN's name, such as ``f32``.
        tag: Format tag, such as ``abcd`` or ``aBcd16b``; empty if undefined.
    """

    role: str
    dtype: str
    tag: str

    def item_bytes(self) -> int | None:
        """Bytes of one element; None for a dtype not known here."""
        return item_bytes(self.dtype)

    def layout(self, shape: tuple[int, ...]) -> Layout | None:
        """The layout this format gives a tensor of that shape."""
        if not self.tag:
            return None
        if not _PLAIN_TAG.match(self.tag):
            return blocked_layout(shape, self.tag)
        order = [ord(letter) - ord("a") for letter in self.tag]
        if sorted(order) != list(range(len(shape))):
            return None
        return strided_layout(shape, dense_stride(shape, order))


@dataclass(frozen=True)
class Primitive:
    """
    One executed primitive.

    Attributes:
        kind: ``reorder``, ``convolution``, ``inner_product``...
        implementation: The code oneDNN chose, such as ``jit:blk``.
        prop_kind: ``forward_training``, ``backward_data``, ``undef``...
        problem: oneDNN's problem text: ``4x64x56x56`` for a reorder, ``mb4_ic3oc64_...`` for a convolution.
        start_seconds: Unix time of its start; None if the log has no timestamps.
        line_number: Line in the log, from 1.
        engine: Where it ran, as printed: ``cpu``, ``gpu:0``.
    """

    kind: str
    implementation: str
    prop_kind: str
    descriptors: tuple[MemoryDescriptor, ...]
    problem: str
    seconds: float
    start_seconds: float | None
    line_number: int
    engine: str = "cpu"

    def descriptor(self, role: str) -> MemoryDescriptor | None:
        """
        The tensor of that role.

        Args:
            role: ``src``, ``wei``, ``bia`` or ``dst``; a printed ``diff_`` is ignored.
        """
        return next((item for item in self.descriptors if item.role.removeprefix("diff_") == role), None)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Logical sizes of a reorder's tensor; None if the problem text is none."""
        return tuple(map(int, self.problem.split("x"))) if _SIZES.match(self.problem) else None


@dataclass
class OnednnLog:
    """
    A parsed log.

    Attributes:
        version: oneDNN's version; None if the log does not say.
        isa: Instruction set oneDNN uses.
        not_understood: Lines that are oneDNN's and could not be read.
        other_lines: Lines that are not oneDNN's.
    """

    primitives: list[Primitive] = field(default_factory=list)
    version: str | None = None
    isa: str | None = None
    not_understood: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether what ran, ran on a GPU."""
        return bool(self.primitives) and all(item.engine.startswith("gpu") for item in self.primitives)

    @property
    def has_timestamps(self) -> bool:
        """Whether every primitive says when it started."""
        return bool(self.primitives) and all(item.start_seconds is not None for item in self.primitives)


def read_onednn_log(text: str) -> OnednnLog:
    """Parses a verbose log; lines of other programs may be in between."""
    log = OnednnLog()
    for number, line in enumerate(text.splitlines(), start=1):
        begin = VERBOSE_LINE.match(line)
        if begin is None:
            log.other_lines.append(line)
            continue
        _read_line(log, line[begin.end() :].strip(), number)
    return log


def _read_line(log: OnednnLog, line: str, number: int) -> None:
    fields = line.split(",")
    if "exec" in fields:
        primitive = _primitive(fields, number)
        if primitive is None:
            log.not_understood.append(line)
        else:
            log.primitives.append(primitive)
    elif "info" in fields:
        _read_information(log, line)
    elif not {"create", "graph", "ukernel"}.intersection(part.split(":")[0] for part in fields):
        log.not_understood.append(line)


def _read_information(log: OnednnLog, line: str) -> None:
    version = re.search(r"(?:oneDNN|DNNL|Intel MKL-DNN) v(\d+(?:\.\d+)*)", line)
    if version is not None:
        log.version = version[1]
    isa = re.search(r",cpu,isa:(.+)$", line)
    if isa is not None:
        log.isa = isa[1].strip()


# Engine, primitive, implementation, prop_kind, descriptors, attributes, auxiliary, problem, time.
_FIELDS_AFTER_EXEC = 9


def _primitive(fields: list[str], number: int) -> Primitive | None:
    at = fields.index("exec")
    rest = fields[at + 1 :]
    if len(rest) < _FIELDS_AFTER_EXEC:
        return None
    if "graph" in fields[:at]:
        return None  # a fused partition of oneDNN Graph: its parts are not listed
    seconds = _duration(rest[-1])
    if seconds is None:
        return None
    return Primitive(
        kind=rest[1],
        implementation=rest[2],
        prop_kind=rest[3],
        descriptors=tuple(filter(None, map(_descriptor, rest[4].split()))),
        problem=rest[-2],
        seconds=seconds,
        start_seconds=_timestamp(fields[1:at]),
        line_number=number,
        engine=rest[0],
    )


def _duration(text: str) -> float | None:
    """A primitive's time, printed in milliseconds; None for what is none, such as ``nan`` in a damaged line."""
    try:
        seconds = float(text) * _SECONDS_PER_MILLISECOND
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _timestamp(fields: list[str]) -> float | None:
    """Start of a primitive, printed in milliseconds of Unix time before the word ``primitive``."""
    times = (float(item) for item in fields if re.fullmatch(r"[0-9]{1,16}\.[0-9]{1,12}", item))
    return next((time * _SECONDS_PER_MILLISECOND for time in times), None)


def _descriptor(text: str) -> MemoryDescriptor | None:
    role, *parts = text.split(":")
    head, _, dtype = role.rpartition("_")
    if head and dtype in DTYPES:  # oneDNN 2.x: src_f32::blocked:abcd:f0
        role, parts = head, [dtype, *parts]
    if len(parts) < 4:
        return None
    return MemoryDescriptor(role, parts[0], parts[3] if parts[2] == "blocked" else "")
