"""
Reads oneDNN's verbose log: one line per primitive that was created or executed.

The profiler does not show the primitives inside an operation. On a CPU, this log is the only record of a ``reorder``.

Source:
    oneDNN developer guide, "Verbose Mode"; lines of MKL-DNN 0.x, DNNL 1.x and oneDNN 2.x to 3.12, with and without
    timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from layoutdoctor.diagnosis import Layout
from layoutdoctor.diagnosis.layout import blocked_layout, dense_stride, strided_layout
from layoutdoctor.diagnosis.record import NonNegativeSeconds
from layoutdoctor.words import DTYPES

_MARKER = r"(?<!\w)(?=(?:onednn|dnnl|mkldnn)_verbose,)"
# A launcher or a logger may write something before the marker: a rank, a time, the sign of a quotation.
VERBOSE_LINE = re.compile(rf"^[^\n{{\"]{{0,120}}?{_MARKER}", re.MULTILINE)
_NEXT_LINE = re.compile("(?=(?:onednn|dnnl|mkldnn)_verbose,)")
_FEWEST_COMMAS = 3  # a marker behind other words, with fewer commas, is prose about the log
_LONGEST_SECONDS = 7 * 24 * 3600  # no primitive runs for a week
_SECONDS_PER_MILLISECOND = 1e-3
_LONGEST_LINE = 2_000
_SIZES = re.compile(r"^[0-9]{1,18}(?:x[0-9]{1,18}){0,11}\Z")  # oneDNN has at most 12 dimensions
_PLAIN_TAG = re.compile(r"^[a-l]+$")
_ENGINE = re.compile(r"^(?:cpu|gpu)(?:\W?\d{1,3})?$")
_PROP_KIND = re.compile(r"^(?:undef|forward\w{0,12}|backward\w{0,10})$")
_CREATED = re.compile(r"^create(?:_nested)?(?::(?!dispatch|check|start)\w{1,40})?$")
_WITHOUT_PRIMITIVE = {"create", "exec", "graph", "ukernel", "warn", "warning"}
_OLD_ROLES = {"in": "src", "out": "dst", "fsrc": "src", "fwei": "wei", "fbia": "bia", "fdst": "dst", "fdata": "data"}


@dataclass(frozen=True)
class MemoryDescriptor:
    """
    One tensor of a primitive.

    Attributes:
        role: ``src``, ``wei``, ``bia``, ``dst``, ``diff_src``... as printed.
        dtype: oneDNN's name of the dtype, such as ``f32``.
        tag: Format tag, such as ``abcd`` or ``aBcd16b``; empty if undefined.
    """

    role: str
    dtype: str
    tag: str

    def layout(self, shape: tuple[int, ...]) -> Layout | None:
        """Returns the layout of a tensor of this shape in this format; None if the tag is empty or does not fit."""
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
        start_seconds: Unix time at which the primitive started; None if the log has no timestamps.
        engine: oneDNN's name of the device that the primitive ran on: ``cpu``, ``gpu:0``.
    """

    kind: str
    implementation: str
    prop_kind: str
    descriptors: tuple[MemoryDescriptor, ...]
    problem: str
    seconds: NonNegativeSeconds
    start_seconds: NonNegativeSeconds | None
    engine: str = "cpu"

    def descriptor(self, role: str) -> MemoryDescriptor | None:
        """
        Returns the tensor with the given role; None if the primitive has no such tensor.

        Args:
            role: ``src``, ``wei``, ``bia`` or ``dst``; a prefix ``diff_`` in the log is ignored.
        """
        return next((item for item in self.descriptors if item.role.removeprefix("diff_") == role), None)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Logical sizes of a reorder's tensor; None if the problem text has another form than ``4x64x56x56``."""
        return tuple(map(int, self.problem.split("x"))) if _SIZES.match(self.problem) else None


@dataclass(frozen=True)
class Creation:
    """
    One primitive that was created, or found in a cache.

    Attributes:
        how: ``create``, ``create:cache_miss``, ``create:cache_hit``, ``create_nested``... as printed. The time of a
            nested creation is a part of the time of the creation around it.
        primitive: Description of the primitive, as printed; equal for two creations of the same primitive.
    """

    how: str
    primitive: str
    seconds: NonNegativeSeconds


@dataclass
class OnednnLog:
    """
    A parsed log.

    Attributes:
        version: oneDNN's version; None if the log does not say.
        isa: Instruction set that oneDNN uses; None if the log does not say.
        not_understood: Lines of oneDNN that could not be read.
        other_lines: Lines of other programs.
        errors: Lines in which oneDNN reports an error.
        partition_seconds: Time of each run of a partition of oneDNN Graph. Primitives in a partition may have no lines.
    """

    primitives: list[Primitive] = field(default_factory=list)
    version: str | None = None
    isa: str | None = None
    not_understood: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)
    creations: list[Creation] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    partition_seconds: list[float] = field(default_factory=list)

    @property
    def is_of_a_gpu(self) -> bool:
        """Whether all primitives ran on a GPU; False without primitives."""
        return bool(self.primitives) and all(item.engine.startswith("gpu") for item in self.primitives)

    @property
    def has_timestamps(self) -> bool:
        """Whether the start of every primitive is known; False without primitives."""
        return bool(self.primitives) and all(item.start_seconds is not None for item in self.primitives)


def read_onednn_log(text: str) -> OnednnLog:
    """Parses a verbose log; lines of other programs may be in between, and two threads may write into one line."""
    log = OnednnLog()
    for line in _whole_lines(text.splitlines()):
        begin = VERBOSE_LINE.match(line)
        if begin is None or (begin[0].strip() and line.count(",", begin.end()) < _FEWEST_COMMAS):
            log.other_lines.append(line)
            continue
        for part in _NEXT_LINE.split(line[begin.end() :]):
            if part:
                _read_line(log, part.strip())
    return log


def _whole_lines(lines: Iterable[str]) -> list[str]:
    """Joins lines that a terminal or a mail broke. The line of a primitive is whole if it ends with a time."""
    found: list[str] = []
    for line in lines:
        if found and _goes_on(found[-1], line):
            found[-1] += re.sub(r"^\s{2,}", "", line)
        else:
            found.append(line)
    return found


def _goes_on(line: str, following: str) -> bool:
    if VERBOSE_LINE.match(following) or not VERBOSE_LINE.match(line):
        return False
    fields = line.split(",")
    if not any(text == "exec" or _CREATED.match(text) for text in fields):
        return False
    is_broken = len(line) < _LONGEST_LINE and _duration(fields[-1]) is None
    return is_broken or re.fullmatch(r"[\d.]+", following) is not None


def _read_line(log: OnednnLog, line: str) -> None:
    fields = line.split(",")
    created = next((place for place, text in enumerate(fields) if _CREATED.match(text)), None)
    seconds = _duration(fields[-1])
    if "exec" in fields and "graph" in fields[: fields.index("exec")] and seconds is not None:
        log.partition_seconds.append(seconds)
    elif "exec" in fields:
        primitive = _primitive(fields)
        if primitive is None:
            log.not_understood.append(line)
        else:
            log.primitives.append(primitive)
    elif created is not None:
        if seconds is None or len(fields) < created + _FEWEST_FIELDS:
            log.not_understood.append(line)
        elif "graph" not in fields[:created]:
            log.creations.append(Creation(fields[created], ",".join(fields[created + 1 : -1]), seconds))
    elif "info" in fields:
        _read_information(log, line)
    elif "error" in fields:
        log.errors.append(line)
    elif not _WITHOUT_PRIMITIVE.intersection(part.split(":")[0] for part in fields):
        log.not_understood.append(line)


def _read_information(log: OnednnLog, line: str) -> None:
    version = re.search(r"(?:oneDNN|DNNL|Intel(?:\(R\))? MKL-DNN) v(\d+(?:\.\d+)*)", line)
    if version is not None:
        log.version = version[1]
    isa = re.search(r",cpu,isa:(.+)$", line) or re.search(r"MKL-DNN v[^,]+,(Intel.+)$", line)
    if isa is not None:
        log.isa = isa[1].strip()


# Primitive, implementation, prop_kind, descriptors, auxiliary, problem, time; newer versions add engine and attributes.
_FEWEST_FIELDS = 7


def _primitive(fields: list[str]) -> Primitive | None:
    at = fields.index("exec")
    rest = fields[at + 1 :]
    engine = rest.pop(0) if rest and is_engine(rest[0]) else "cpu"
    if len(rest) > 1 and _PROP_KIND.match(rest[1]):
        rest.insert(1, "")  # the first versions do not name the implementation
    # The primitive's start is printed in milliseconds of Unix time.
    times = (float(item) for item in fields[1:at] if re.fullmatch(r"[0-9]{1,16}\.[0-9]{1,12}", item))
    seconds = _duration(rest[-1]) if len(rest) >= _FEWEST_FIELDS else None
    if seconds is None or not rest[-2]:
        return None
    return Primitive(
        kind=rest[0],
        implementation=rest[1],
        prop_kind=rest[2],
        descriptors=tuple(filter(None, map(_descriptor, rest[3].split()))),
        problem=rest[-2],
        seconds=seconds,
        start_seconds=next((time * _SECONDS_PER_MILLISECOND for time in times), None),
        engine=engine,
    )


def is_engine(text: str) -> bool:
    """Whether a field of a line names an engine, such as ``cpu`` or ``gpu:0``; the first oneDNN versions name none."""
    return _ENGINE.match(text) is not None


def _duration(text: str) -> float | None:
    """Converts a printed time from milliseconds to seconds; None for a text that is no time, such as ``nan``."""
    try:
        seconds = float(text) * _SECONDS_PER_MILLISECOND
    except ValueError:
        return None
    return seconds if 0 <= seconds < _LONGEST_SECONDS else None


def _descriptor(text: str) -> MemoryDescriptor | None:
    role, *parts = text.split(":")
    if role in _OLD_ROLES and len(parts) == 1:  # MKL-DNN 0.x: in:f32_nchw, fsrc:nChw16c
        head, _, tag = parts[0].rpartition("_")
        return MemoryDescriptor(_OLD_ROLES[role], head if head in DTYPES else "", _in_letters(tag))
    head, _, dtype = role.rpartition("_")
    if head and dtype in DTYPES:  # oneDNN 2.x: src_f32::blocked:abcd:f0
        role, parts = head, [dtype, *parts]
    if len(parts) < 4:
        return None
    return MemoryDescriptor(role, parts[0], parts[3] if parts[2] == "blocked" else "")


def _in_letters(tag: str) -> str:
    """Translates a format of MKL-DNN 0.x to today's letters: ``nChw16c`` to ``aBcd16b``; empty if it is no format."""
    names = "goidhw" if "o" in tag.lower() else "ncdhw"
    known = [name for name in names if name in tag.lower()] if tag != "x" else ["x"]
    if not set(re.sub(r"\d", "", tag.lower())) <= set(known):
        return ""
    letters = {name: chr(ord("a") + place) for place, name in enumerate(known)}
    letters |= {name.upper(): letter.upper() for name, letter in letters.items()}
    return "".join(letters.get(sign, sign) for sign in tag)
