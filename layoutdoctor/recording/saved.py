"""
Saves and loads recordings. A file is gzipped MessagePack that begins with a version; it has data only, never code.

A column is stored in the smallest integer type that holds its numbers. If the differences between neighbours fit a
smaller type, the differences are stored. The first bytes of all numbers are stored together, then the second bytes, and
so on, because this compresses well. Nothing is rounded.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from layoutdoctor.diagnosis.record import Record
from layoutdoctor.diagnosis.saved import (
    DEFAULT_MOST_SAVED_BYTES,
    GZIP_MAGIC,
    UNREADABLE,
    problems_as_observed,
    read_saved,
    reason_of,
    unpack,
)
from layoutdoctor.errors import RecordError
from layoutdoctor.files.writing import RECORDING_SUFFIX, printable, replacing
from layoutdoctor.recording.recording import EVENT_TABLES, NONE, Recording

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Column, RecordedTrace

VERSION = 2
_HIGHEST_RATIO = 16
"""Largest ratio of unpacked to packed size that a large recording had; a crafted file can reach a thousand."""
_DIFFERENCES = 16
"""Flag in the first byte of a packed column that holds differences. The other bits are a number's size in bytes."""


class _File(Record, frozen=True, kw_only=True):
    recording_version: int
    recording: Recording


class _Version(msgspec.Struct):
    recording_version: int


def save_recording(recording: Recording, path: Path) -> None:
    """
    Writes a recording; a reader sees the old file or the new file, never an incomplete one.

    Args:
        recording: The recording, which is written as it is: scrub it before the file is given to others.
        path: Path of the file; an existing file is replaced.

    Raises:
        OSError: The file could not be written.
    """
    data = gzip.compress(pack(_File(recording_version=VERSION, recording=recording)), mtime=0)
    with replacing(path) as stream:
        stream.write(data)


def load_recording(path: str | Path) -> Recording:
    """
    Reads a recording.

    Raises:
        RecordError: The file cannot be read, is too large, is no recording, is damaged, has another version, or
            contradicts itself.
    """
    cannot = f"cannot read {str(path)!r}:"
    data = read_saved(path)
    if not data.startswith(GZIP_MAGIC):
        raise RecordError(f"{cannot} {'it is empty' if not data else 'it is no recording'}; {_EXPECTED}")
    unpacked = unpack(data, DEFAULT_MOST_SAVED_BYTES + _HIGHEST_RATIO * len(data), cannot)
    try:
        version = msgspec.msgpack.decode(unpacked, type=_Version).recording_version
    except UNREADABLE as error:
        raise RecordError(f"{cannot} it is no recording; {_EXPECTED}") from error
    if version != VERSION:
        older = "examine it with the layoutdoctor version that wrote it"
        advice = "update layoutdoctor" if version > VERSION else older
        raise RecordError(f"{cannot} it is a recording of version {version}, expected {VERSION}; {advice}")
    try:
        recording = msgspec.msgpack.decode(unpacked, type=_File, dec_hook=unpacked_column).recording
        problem = next(_problems(recording), None)
    except UNREADABLE as error:
        raise RecordError(f"{cannot} {reason_of(error)}; it is damaged: record it again") from error
    if problem is not None:
        raise RecordError(f"{cannot} {problem}; it was changed after it was saved: record it again")
    return recording


_EXPECTED = f"expected what --save-recordings wrote (NAME{RECORDING_SUFFIX})"


def pack(value: object) -> bytes:
    """
    Packs any value as MessagePack, including columns of numbers.

    A lone surrogate, as in a file name that is no UTF-8, becomes its escape.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False, enc_hook=_packed_column)
        return _encoder.encode(printable(plain))


def _packed_column(value: object) -> bytes:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(type(value))
    plain, differences = _narrowed(value), _narrowed(np.diff(value, prepend=0))
    kept = min(plain, differences, key=lambda column: column.itemsize)
    planes: bytes = kept.view(np.uint8).reshape(-1, kept.itemsize).T.tobytes()
    return bytes([kept.itemsize | (_DIFFERENCES if kept is differences else 0)]) + planes


def _narrowed(column: Column) -> np.ndarray[Any, Any]:
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    kinds = ((kind, np.iinfo(kind)) for kind in ("<i1", "<i2", "<i4", "<i8"))
    return column.astype(next(kind for kind, limits in kinds if limits.min <= low and high <= limits.max))


def unpacked_column(kind: type, value: object) -> Column:
    """
    Unpacks a column of numbers.

    Raises:
        ValueError: The value is no packed column.
    """
    if kind is not np.ndarray or not isinstance(value, bytes) or not value:
        raise ValueError("expected a column of numbers")
    size, is_differences = value[0] & ~_DIFFERENCES, bool(value[0] & _DIFFERENCES)
    if size not in (1, 2, 4, 8) or (len(value) - 1) % size:
        raise ValueError("a column of numbers is cut off")
    planes = np.frombuffer(value, np.uint8, offset=1).reshape(size, -1)
    column = np.ascontiguousarray(planes.T).view(f"<i{size}").reshape(-1).astype(np.int64)
    return np.cumsum(column) if is_differences else column


_encoder = msgspec.msgpack.Encoder(enc_hook=_packed_column)


def _problems(recording: Recording) -> Iterator[str]:
    """Yields the contradictions in a recording, whose file anybody may have edited."""
    if recording.name not in recording.head.configurations:
        yield f"$.head.configurations does not name {recording.name!r}, which was recorded"
    for number, iteration in enumerate(recording.iterations):
        yield from _problems_of_events(f"$.iterations[{number}].events", iteration.events)
    yield from problems_as_observed("$.trial", recording.trial)


def _problems_of_events(place: str, events: RecordedTrace) -> Iterator[str]:
    lists = {
        "name": len(events.names),
        "thread": len(events.threads),
        "grid": len(events.grids),
        "arguments": len(events.arguments),
    }
    for table in EVENT_TABLES:
        rows = getattr(events, table)
        for name in rows.__dataclass_fields__:
            column: Column = getattr(rows, name)
            if len(column) != len(rows):
                yield f"{place}.{table}.{name} has {len(column)} entries, expected {len(rows)}"
            elif name in lists and len(column):
                least = 0 if name == "name" else NONE
                if not least <= int(column.min()) or int(column.max()) >= lists[name]:
                    yield f"{place}.{table}.{name} has an index outside its list of {lists[name]} entries"
        if len(rows) and (np.diff(rows.start) < 0).any():
            yield f"{place}.{table} is not in the order of its starts"
