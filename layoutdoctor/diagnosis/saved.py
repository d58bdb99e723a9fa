"""Encodes records as JSON, and loads a diagnosis. A file that contradicts itself is refused; errors name the field."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.compile_arguments import COMPILE_ARGUMENTS
from layoutdoctor.diagnosis.compile_options import EXPECTED, may_be_set
from layoutdoctor.diagnosis.configurations import LIBRARY_SWITCHES
from layoutdoctor.diagnosis.diagnosis import SCHEMA_VERSION, Diagnosis
from layoutdoctor.errors import RecordError
from layoutdoctor.files.writing import opened
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.graph import Graph
    from layoutdoctor.diagnosis.record import Record
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.diagnosis.trial import Observed, Trial

DEFAULT_MOST_BYTES = 8 << 30
"""Default limit of the unpacked bytes of a trace: reading 8 GiB takes a minute or two."""

DEFAULT_MOST_SAVED_BYTES = 128 << 20
"""Default limit of the bytes of a saved diagnosis; the largest known diagnosis has 15 MiB."""

GZIP_MAGIC = b"\x1f\x8b"
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that decoding raises on data of another kind; RecursionError on JSON that is nested thousands deep."""

_HEAD_BYTES = 1 << 16
_LONGEST_REASON = 300


def read_saved(path: str | Path, max_bytes: int = DEFAULT_MOST_SAVED_BYTES) -> bytes:
    """
    Reads the bytes of a file.

    Raises:
        RecordError: The path cannot be read, is no file, or has more than ``max_bytes``.
    """
    cannot = f"cannot read {str(path)!r}:"
    try:
        with opened(path) as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise RecordError(
            f"{cannot} {error.strerror or error}; name a file that layoutdoctor saved (--output FILE.json, "
            "--write-accepted, --save-recordings)"
        ) from error
    if len(data) > max_bytes:
        raise RecordError(
            f"{cannot} it has more than {format_bytes(max_bytes)}, which is the limit of a saved file; if it is a "
            "diagnosis, raise the limit: layoutdoctor.load(path, max_bytes=...)"
        )
    return data


def unpack(data: bytes, max_bytes: int, cannot: str) -> bytes:
    """
    Unpacks gzipped data.

    Args:
        cannot: Beginning of the message of an error.

    Raises:
        RecordError: The data are damaged, or unpack to more than ``max_bytes``.
    """
    unpacked = b""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            if int.from_bytes(data[-4:], "little") > max_bytes:  # the size in the last bytes is too large: keep nothing
                stream.seek(max_bytes + 1)
            else:
                unpacked = stream.read(max_bytes + 1)
            is_too_large = stream.tell() > max_bytes
    except (EOFError, OSError, zlib.error) as error:
        raise RecordError(f"{cannot} it is cut off or damaged; copy or record it again") from error
    if is_too_large:
        raise RecordError(f"{cannot} unpacked it has more than {format_bytes(max_bytes)}, which is too much")
    return unpacked


def reason_of(error: Exception) -> str:
    """Returns the reason why decoding failed, in one line of limited length."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


def _problems(diagnosis: Diagnosis) -> Iterator[str]:
    names = [trial.name for trial in diagnosis.trials]
    yield from _repeated("$.trials.configuration.name", names)
    yield from _unknown("$.findings.configuration", [one.configuration for one in diagnosis.findings], names)
    compared, without = diagnosis.comparison, diagnosis.without_freezing
    if compared is not None:
        named = [compared.baseline, *(ratio.name for ratio in compared.ratios), *compared.fastest]
        yield from _unknown("$.comparison", named, names)
    advised = [diagnosis.recommended_name, without.configuration if without is not None else None]
    yield from _unknown("$.recommendation", advised, names)
    measured = [trial.name for trial in diagnosis.trials if trial.same_as is None]
    for number, trial in enumerate(diagnosis.trials):
        yield from _unknown(f"$.trials[{number}].same_as", [trial.same_as], measured)
        yield from problems_in_trial(f"$.trials[{number}]", trial)


def _in_configuration(place: str, configuration: Configuration) -> Iterator[str]:
    """Yields a text for each setting that is not allowed: a saved configuration may be applied to the user's model."""
    for name, value in configuration.inductor_options.items():
        if not may_be_set(name, value):
            yield f"{place}.inductor_options sets {_shown(name)} to {_shown(str(value))}, expected {EXPECTED}"
    for part, names, expected in (
        ("compile_arguments", configuration.compile_arguments, COMPILE_ARGUMENTS),
        ("library_switches", configuration.library_switches, LIBRARY_SWITCHES),
    ):
        for name in names:
            if name not in expected:
                yield f"{place}.{part} has {_shown(name)}, expected only {', '.join(expected)}"


def problems_as_observed(place: str, trial: Observed) -> Iterator[str]:
    """Yields the contradictions and the forbidden settings in an observed trial; ``place`` is its path in the file."""
    yield from _in_configuration(f"{place}.configuration", trial.configuration)
    yield from _repeated(f"{place}.graphs.name", [graph.name for graph in trial.graphs])
    for number, graph in enumerate(trial.graphs):
        yield from _in_graph(f"{place}.graphs[{number}]", graph)


def problems_in_trial(place: str, trial: Trial) -> Iterator[str]:
    """Yields the contradictions within a trial; ``place`` is its path in the file."""
    yield from problems_as_observed(place, trial)
    listed = trial.kernel_summary.conversions
    ids = [one.id for part in (listed, *(graph.conversions for graph in trial.graphs)) for one in part]
    yield from _repeated(f"{place}, conversions: id", ids)
    if trial.same_as is None:  # otherwise the pairs belong to the other trial
        of_pairs = [id for pair in trial.redundant_pairs for id in (pair.first, pair.second, *pair.also)]
        yield from _unknown(f"{place}.redundant_pairs", of_pairs, ids)


def _in_graph(place: str, graph: Graph) -> Iterator[str]:
    names = [node.name for node in graph.nodes]
    yield from _repeated(f"{place}.nodes.name", names)
    later = set(names)
    for number, node in enumerate(graph.nodes):
        early = later.intersection(node.inputs)
        if early:
            yield f"{place}.nodes[{number}].inputs has {_shown(min(early))}, expected nodes that come before this one"
        later.discard(node.name)


def _repeated(place: str, names: Iterable[str]) -> Iterator[str]:
    for name, following in pairwise(sorted(names)):
        if name == following:
            yield f"{place} is {_shown(name)} more than once, expected each once"


def _unknown(place: str, names: Iterable[str | None], known: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name is not None and name not in known:
            yield f"{place} names {_shown(name)}, which is not in the file"


def _shown(name: str) -> str:
    """Quotes a name for an error and shortens it, because a name in a file may have megabytes."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


_UNSEEN = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters, separators, direction marks, characters without width. JSON escapes controls below a space."""


def to_json(record: Record) -> bytes:
    """Encodes a record as a line of JSON; invisible characters, and characters that control a terminal, are escaped."""
    text = msgspec.json.encode(record).decode()
    return _UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text).encode() + b"\n"


_MOST_DIGITS = 9  # digits of a version that an error prints


class _Head(msgspec.Struct):
    """The fields that show whether a file is a diagnosis that can be read; only a comparison has a ``kind``."""

    schema_version: int
    kind: str = ""


def from_json(data: bytes, name: str = "the diagnosis") -> Diagnosis:
    """
    Decodes a diagnosis from JSON; fields of later versions are ignored.

    Args:
        name: Name of the diagnosis in errors, such as the file's name.

    Raises:
        RecordError: The data are no JSON or no diagnosis, or the diagnosis has another schema version or contradicts
            itself.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        head = msgspec.json.decode(data, type=_Head)
    except UNREADABLE as error:
        if b'"traceEvents"' in data[:_HEAD_BYTES]:
            why = "it is a recorded trace; examine it first (layoutdoctor show FILE --output SAVED.json)"
        else:
            why = f"{reason_of(error)}; expected a diagnosis saved by layoutdoctor (--output FILE.json)"
        raise RecordError(f"cannot read {name}: {why}") from error
    if head.schema_version != SCHEMA_VERSION:
        is_newer = head.schema_version > SCHEMA_VERSION
        digits = str(head.schema_version)
        version = digits if len(digits) <= _MOST_DIGITS else f"{digits[:_MOST_DIGITS]}..."
        raise RecordError(
            f"cannot read {name}: it has schema_version {version}, expected {SCHEMA_VERSION}; "
            f"{'update layoutdoctor, or ' if is_newer else ''}read it with the layoutdoctor version that wrote it"
        )
    if head.kind.endswith("comparison"):
        raise RecordError(
            f"cannot read {name}: it is a {head.kind}, expected a diagnosis; name one of those that it compares"
        )
    try:
        diagnosis = msgspec.json.decode(data, type=Diagnosis)
    except UNREADABLE as error:
        raise RecordError(
            f"cannot read {name}: {reason_of(error)}; it is no diagnosis of schema_version {SCHEMA_VERSION}"
        ) from error
    if problem := next(_problems(diagnosis), ""):
        raise RecordError(f"cannot read {name}: {problem}; it was changed after it was saved: diagnose again")
    return diagnosis


def load(path: str | Path, max_bytes: int = DEFAULT_MOST_SAVED_BYTES) -> Diagnosis:
    """
    Reads a saved diagnosis.

    Args:
        path: A file written by ``Diagnosis.save`` or ``--output FILE.json``, also ``FILE.json.gz``.
        max_bytes: The largest size that is read, both packed and unpacked. Reading takes several times the file's size
            in memory.

    Raises:
        RecordError: The file cannot be read, is too large, or is no diagnosis.
    """
    name = repr(str(path))
    data = read_saved(path, max_bytes)
    return from_json(unpack(data, max_bytes, f"cannot read {name}:") if data.startswith(GZIP_MAGIC) else data, name)
