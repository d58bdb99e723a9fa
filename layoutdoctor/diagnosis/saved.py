"""A diagnosis as a file: written, read, and refused with a reason where it is none or contradicts itself."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from itertools import accumulate, pairwise
from operator import mul
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.records import SCHEMA_VERSION, Diagnosis, Record
from layoutdoctor.errors import RecordError
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.layout import Size
    from layoutdoctor.diagnosis.records import FxNode, Trial

DEFAULT_MOST_BYTES = 8 << 30
"""Unpacked bytes that are read of a trace without being asked for more: 8 GiB take a minute or two."""

DEFAULT_MOST_SAVED_BYTES = 128 << 20
"""Bytes of a saved diagnosis that are read without being asked for more; the largest ones known have 15 MiB."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16
_LONGEST_REASON = 300
_MOST_ELEMENTS = 2**63 - 1
"""What torch itself can count."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises on data of another kind; the last one on JSON nested thousands deep."""


def read_saved(path: str | Path, max_bytes: int) -> bytes:
    """
    The bytes of a file.

    Args:
        path: Which file; a pipe or a device is read to its end.

    Raises:
        RecordError: It cannot be read, or has more bytes than that.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as stream:
            data = stream.read(max_bytes + 1)
    except IsADirectoryError as error:
        raise RecordError(f"cannot read {str(path)!r}: it is a directory; name the saved diagnosis in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RecordError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > max_bytes:
        raise RecordError(
            f"cannot read {str(path)!r}: it has more than {format_bytes(max_bytes)}, which is the limit of a saved "
            "diagnosis; if it is one all the same, raise the limit: layoutdoctor.load(path, max_bytes=...)"
        )
    return data


def unpack(data: bytes, max_bytes: int, cannot: str) -> bytes:
    """
    Gzipped data, unpacked.

    Args:
        cannot: What an error begins with.

    Raises:
        RecordError: The data are damaged, or have more bytes than that.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(max_bytes + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise RecordError(f"{cannot} it is cut off or damaged; copy or record it again") from error
    if len(unpacked) > max_bytes:
        raise RecordError(f"{cannot} unpacked it has more than {format_bytes(max_bytes)}, which is too much")
    return unpacked


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens at once also a pipe that nobody writes to, which is then empty; without that it would wait forever."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def why_unreadable(data: bytes, error: Exception) -> str:
    """Why data are no JSON object with a schema version, and what to do."""
    expected = "expected a diagnosis saved by layoutdoctor (--output FILE.json)"
    if not data.strip():
        return f"it is empty; {expected}"
    if data.startswith(_UTF_16_MARKS):
        return "it is UTF-16 text, expected UTF-8; save it with --output FILE.json instead of redirecting"
    if data.lstrip().startswith(b"["):
        return f"it is a list; {expected}, one in each file"
    if b'"traceEvents"' in data[:_HEAD_BYTES]:
        return "it is a recorded trace; examine it first (layoutdoctor trace FILE --output SAVED.json)"
    return f"{reason_of(error)}; {expected}"


def reason_of(error: Exception) -> str:
    """What decoding found wrong, on one line of a bearable length."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


_TRIAL_NAMES = (
    "trials.same_as",
    "comparison.baseline",
    "comparison.ratios.name",
    "comparison.fastest",
    "findings.configuration",
    "recommendation.configuration",
    "recommendation.speedup.name",
    "recommendation.without_freezing.configuration",
    "recommendation.without_freezing.speedup.name",
)
_RATIOS = ("comparison.ratios", "recommendation.speedup", "recommendation.without_freezing.speedup")
_LAYOUTS = (
    "subject.inputs",
    "trials.kernels.conversions.source",
    "trials.kernels.conversions.target",
    "trials.graphs.conversions.source",
    "trials.graphs.conversions.target",
    "trials.graphs.nodes.layout",
    "trials.graphs.buffers.layout",
    "trials.graphs.breakers.source",
    "trials.graphs.breakers.target",
    "trials.gradient_layouts.layout",
    "trials.gradient_layouts.gradient",
    "trials.equivalence.output_layouts",
)


def first_problem(diagnosis: Diagnosis) -> str | None:
    """The first thing in a diagnosis that cannot be, with its field; None where all agrees."""
    return next(_problems(diagnosis), None)


def _problems(diagnosis: Diagnosis) -> Iterator[str]:
    ordered = [trial.name for trial in diagnosis.trials]
    yield from _repeated("$.trials.configuration.name", ordered)
    names = set(ordered)
    for place, name in _found(diagnosis, _TRIAL_NAMES):
        yield from _unknown(place, name, names, "name of a trial")
    for place, ratio in _found(diagnosis, _RATIOS):
        if not ratio.low <= ratio.median <= ratio.high:
            ends = f"low {ratio.low}, median {ratio.median}, high {ratio.high}"
            yield f"{place} has {ends}, expected them in this order"
    for place, layout in _found(diagnosis, _LAYOUTS):
        yield from _sizes(place, layout.shape, layout.stride)
    for number, trial in enumerate(diagnosis.trials):
        yield from _in_trial(f"$.trials[{number}]", diagnosis, trial)


def _found(diagnosis: Diagnosis, paths: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Each value that these paths of fields lead to, with its place; a path leads through all entries of a list."""
    for path in paths:
        yield from _values(path.split("."), diagnosis, "$")


def _values(path: Sequence[str], value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield from _values(path, entry, f"{place}[{number}]")
    elif value is not None and path:
        yield from _values(path[1:], getattr(value, path[0]), f"{place}.{path[0]}")
    elif value is not None:
        yield place, value


def _in_trial(place: str, diagnosis: Diagnosis, trial: Trial) -> Iterator[str]:
    yield from _same_as(place, diagnosis, trial)
    yield from _repeated(f"{place}.graphs.name", [graph.name for graph in trial.graphs])
    for number, graph in enumerate(trial.graphs):
        yield from _in_nodes(f"{place}.graphs[{number}].nodes", graph.nodes)
    listed = trial.kernels.conversions if trial.kernels is not None else ()
    ids = [conversion.id for part in (listed, *(graph.conversions for graph in trial.graphs)) for conversion in part]
    yield from _repeated(f"{place}, conversions: id", ids)
    if trial.same_as is None:  # otherwise the pairs are those of the other trial
        known = set(ids)
        for number, pair in enumerate(trial.redundant_pairs):
            own = f"{place}.redundant_pairs[{number}]"
            for field, id in (("first", pair.first), ("second", pair.second), *(("also", id) for id in pair.also)):
                yield from _unknown(f"{own}.{field}", id, known, "id of a conversion of its trial")


def _same_as(place: str, diagnosis: Diagnosis, trial: Trial) -> Iterator[str]:
    if trial.same_as is None:
        if trial.status == "same_as":
            yield f"{place}.same_as is null, expected the name of another trial, since its status is 'same_as'"
        return
    seen, other = {trial.name}, diagnosis.find_trial(trial.same_as)
    while other is not None and other.same_as is not None and other.name not in seen:
        seen.add(other.name)
        other = diagnosis.find_trial(other.same_as)
    if other is not None and other.name in seen:
        yield f"{place}.same_as is {_shown(trial.same_as)}, which leads back to this trial"


def _in_nodes(place: str, nodes: Sequence[FxNode]) -> Iterator[str]:
    yield from _repeated(f"{place}.name", [node.name for node in nodes])
    made: set[str] = set()
    own = {node.name for node in nodes}
    for number, node in enumerate(nodes):
        early = next((name for name in node.inputs if name in own and name not in made), None)
        if early is not None:
            yield f"{place}[{number}].inputs has {_shown(early)}, expected nodes that stand before this one"
        made.add(node.name)


def _sizes(place: str, shape: Sequence[Size], stride: Sequence[Size] | None) -> Iterator[str]:
    if stride is not None and len(stride) != len(shape):
        yield f"{place} has strides in {len(stride)} and sizes in {len(shape)} dimensions, expected as many of each"
    sizes = (size for size in shape if isinstance(size, int) and size)
    if any(count > _MOST_ELEMENTS for count in accumulate(sizes, mul)):  # ends before the product is endless itself
        yield f"{place}.shape stands for more elements than a tensor can have, expected at most {_MOST_ELEMENTS}"


def _repeated(place: str, names: Iterable[str]) -> Iterator[str]:
    twice = next((name for name, following in pairwise(sorted(names)) if name == following), None)
    if twice is not None:
        yield f"{place} is {_shown(twice)} more than once, expected each once"


def _unknown(place: str, name: str, known: set[str], expected: str) -> Iterator[str]:
    if name not in known:
        yield f"{place} is {_shown(name)}, expected the {expected}"


def _shown(name: str) -> str:
    """A name as an error quotes it; a file may hold one of megabytes."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


_UNSEEN = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls, line separators, marks of direction and characters without width; what is below a space JSON escapes."""


def to_json(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as JSON, by the contract, on one line; what the contract does not name is left out if not known."""
    return encoded(diagnosis)


def encoded(record: Record) -> bytes:
    """A record as one line of JSON in which every character that acts on a terminal, or is not seen, is escaped."""
    text = msgspec.json.encode(record).decode()
    return _UNSEEN.sub(_escaped, text).encode() + b"\n"


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def from_json(data: bytes, name: str = "the diagnosis") -> Diagnosis:
    """
    A diagnosis from its JSON.

    Args:
        data: What ``to_json`` wrote; fields not known here are ignored.
        name: What to call it in an error, such as the file's name.

    Raises:
        RecordError: The data are no JSON, no diagnosis, one of a schema version that this version cannot read, or one
            that contradicts itself.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        head = msgspec.json.decode(data, type=_Head)
    except UNREADABLE as error:
        raise RecordError(f"cannot read {name}: {why_unreadable(data, error)}") from error
    if head.schema_version != SCHEMA_VERSION:
        is_newer = head.schema_version > SCHEMA_VERSION
        raise RecordError(
            f"cannot read {name}: it has schema_version {head.schema_version}, expected {SCHEMA_VERSION}; "
            f"{'update layoutdoctor, or ' if is_newer else ''}read it with the layoutdoctor version that wrote it"
        )
    if head.kind.endswith("comparison"):
        raise RecordError(
            f"cannot read {name}: it is a {head.kind}, expected a diagnosis; name one of the two compared"
        )
    try:
        diagnosis = msgspec.json.decode(data, type=Diagnosis)
    except UNREADABLE as error:
        raise RecordError(
            f"cannot read {name}: {reason_of(error)}; it is no diagnosis of schema_version {SCHEMA_VERSION}"
        ) from error
    problem = first_problem(diagnosis)
    if problem is not None:
        raise RecordError(f"cannot read {name}: {problem}; it was changed after it was saved: diagnose again")
    return diagnosis


def load(path: str | Path, max_bytes: int = DEFAULT_MOST_SAVED_BYTES) -> Diagnosis:
    """
    Reads a saved diagnosis.

    Args:
        path: A file written by ``Diagnosis.save`` or ``--output FILE.json``, also ``FILE.json.gz``.
        max_bytes: A file with more bytes, packed or not, is refused; reading takes several times its size in memory.

    Raises:
        RecordError: The file cannot be read, is too large, or is no diagnosis.
    """
    name = repr(str(path))
    data = read_saved(path, max_bytes)
    if data.startswith(GZIP_MAGIC):
        data = unpack(data, max_bytes, f"cannot read {name}:")
    return from_json(data, name)


class _Head(msgspec.Struct):
    """As much as says whether it is a diagnosis that can be read; a comparison has a kind."""

    schema_version: int
    kind: str = ""
