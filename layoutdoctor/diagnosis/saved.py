"""A diagnosis as a file: written, read, and refused with a reason where it is none or contradicts itself."""

from __future__ import annotations

import base64
import os
import re
from itertools import accumulate, pairwise
from operator import mul
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from layoutdoctor.diagnosis.records import SCHEMA_VERSION, Buffer, Diagnosis, FxNode, Kernel, Record
from layoutdoctor.errors import RecordError
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        Conversion,
        FreshProcesses,
        Graph,
        KernelSummary,
        RatioInterval,
        Speedup,
        Trial,
    )

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16
_LONGEST_REASON = 300
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
    if data.startswith(_GZIP_MAGIC):
        return "it is packed with gzip; unpack it first (gunzip)"
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


_MOST_ELEMENTS = 2**63 - 1
"""What torch itself can count."""


def first_problem(diagnosis: Diagnosis) -> str | None:
    """The first thing in a diagnosis that cannot be, with its field; None where all agrees."""
    return next(_problems(diagnosis), None)


def _problems(diagnosis: Diagnosis) -> Iterator[str]:
    names = {trial.name for trial in diagnosis.trials}
    yield from _repeated("$.trials", ".configuration.name", [trial.name for trial in diagnosis.trials])
    for number, tensor in enumerate(diagnosis.subject.inputs):
        yield from _sizes(f"$.subject.inputs[{number}]", tensor.shape, tensor.stride)
    for number, trial in enumerate(diagnosis.trials):
        yield from _in_trial(f"$.trials[{number}]", diagnosis, trial)
    yield from _in_comparison(diagnosis, names)
    for number, finding in enumerate(diagnosis.findings):
        yield from _unknown(f"$.findings[{number}].configuration", finding.configuration, names, "trial")
    if diagnosis.recommendation is not None:
        recommended = diagnosis.recommendation
        yield from _unknown("$.recommendation.configuration", recommended.configuration, names, "trial")
        if recommended.speedup is not None:
            yield from _interval("$.recommendation.speedup", recommended.speedup)
        if recommended.fresh_processes is not None:
            yield from _interval("$.recommendation.fresh_processes", recommended.fresh_processes)
        free = recommended.without_freezing
        if free is not None:
            yield from _unknown("$.recommendation.without_freezing.configuration", free.configuration, names, "trial")


def _in_comparison(diagnosis: Diagnosis, names: set[str]) -> Iterator[str]:
    comparison = diagnosis.comparison
    if comparison is None:
        return
    yield from _unknown("$.comparison.baseline", comparison.baseline, names, "trial")
    for number, ratio in enumerate(comparison.ratios):
        yield from _unknown(f"$.comparison.ratios[{number}].name", ratio.name, names, "trial")
        yield from _interval(f"$.comparison.ratios[{number}]", ratio)
    for number, name in enumerate(comparison.fastest):
        yield from _unknown(f"$.comparison.fastest[{number}]", name, names, "trial")


def _interval(place: str, interval: RatioInterval | Speedup | FreshProcesses) -> Iterator[str]:
    if not interval.low <= interval.median <= interval.high:
        ends = f"low {interval.low}, median {interval.median}, high {interval.high}"
        yield f"{place} has {ends}, expected them in this order"


def _in_trial(place: str, diagnosis: Diagnosis, trial: Trial) -> Iterator[str]:
    yield from _same_as(place, diagnosis, trial)
    yield from _repeated(f"{place}.graphs", ".name", [graph.name for graph in trial.graphs])
    listed = trial.kernels.conversions if trial.kernels is not None else ()
    yield from _in_conversions(f"{place}.kernels.conversions", listed)
    for number, graph in enumerate(trial.graphs):
        yield from _in_graph(f"{place}.graphs[{number}]", graph)
    conversions = [*listed, *(conversion for graph in trial.graphs for conversion in graph.conversions)]
    ids = [conversion.id for conversion in conversions]
    yield from _repeated(place, ", conversions: id", ids)
    if trial.same_as is None:  # otherwise the pairs are those of the other trial
        known = set(ids)
        for number, pair in enumerate(trial.redundant_pairs):
            own = f"{place}.redundant_pairs[{number}]"
            for field, id in (("first", pair.first), ("second", pair.second), *(("also", id) for id in pair.also)):
                yield from _unknown(f"{own}.{field}", id, known, "conversion of its trial")
    for number, gradient in enumerate(trial.gradient_layouts):
        yield from _layouts(f"{place}.gradient_layouts[{number}]", layout=gradient.layout, gradient=gradient.gradient)
    if trial.equivalence is not None:
        for number, layout in enumerate(trial.equivalence.output_layouts):
            yield from _sizes(f"{place}.equivalence.output_layouts[{number}]", layout.shape, layout.stride)


def _same_as(place: str, diagnosis: Diagnosis, trial: Trial) -> Iterator[str]:
    if trial.same_as is None:
        if trial.status == "same_as":
            yield f"{place}.same_as is null, expected the name of another trial, since its status is 'same_as'"
        return
    yield from _unknown(f"{place}.same_as", trial.same_as, {other.name for other in diagnosis.trials}, "trial")
    seen = {trial.name}
    other = diagnosis.find_trial(trial.same_as)
    while other is not None and other.same_as is not None and other.name not in seen:
        seen.add(other.name)
        other = diagnosis.find_trial(other.same_as)
    if other is not None and other.name in seen:
        yield f"{place}.same_as is {_shown(trial.same_as)}, which leads back to this trial"


def _in_graph(place: str, graph: Graph) -> Iterator[str]:
    yield from _in_conversions(f"{place}.conversions", graph.conversions)
    yield from _repeated(f"{place}.nodes", ".name", [node.name for node in graph.nodes])
    made: set[str] = set()
    own = {node.name for node in graph.nodes}
    for number, node in enumerate(graph.nodes):
        early = next((name for name in node.inputs if name in own and name not in made), None)
        if early is not None:
            yield f"{place}.nodes[{number}].inputs has {_shown(early)}, expected nodes that stand before this one"
        made.add(node.name)
        yield from _layouts(f"{place}.nodes[{number}]", layout=node.layout)
    for number, buffer in enumerate(graph.buffers):
        yield from _layouts(f"{place}.buffers[{number}]", layout=buffer.layout)
    for number, breaker in enumerate(graph.breakers):
        yield from _layouts(f"{place}.breakers[{number}]", source=breaker.source, target=breaker.target)


def _in_conversions(place: str, conversions: Sequence[Conversion]) -> Iterator[str]:
    for number, conversion in enumerate(conversions):
        yield from _layouts(f"{place}[{number}]", source=conversion.source, target=conversion.target)


def _layouts(place: str, **layouts: Layout | None) -> Iterator[str]:
    for field, layout in layouts.items():
        if layout is not None:
            yield from _sizes(f"{place}.{field}", layout.shape, layout.stride)


def _sizes(place: str, shape: Sequence[int | str], stride: Sequence[int | str] | None) -> Iterator[str]:
    if stride is not None and len(stride) != len(shape):
        yield f"{place} has strides in {len(stride)} and sizes in {len(shape)} dimensions, expected as many of each"
    sizes = (size for size in shape if isinstance(size, int) and size)
    if any(count > _MOST_ELEMENTS for count in accumulate(sizes, mul)):  # ends before the product is endless itself
        yield f"{place}.shape stands for more elements than a tensor can have, expected at most {_MOST_ELEMENTS}"


def _repeated(place: str, field: str, names: Iterable[str]) -> Iterator[str]:
    ordered = sorted(names)
    twice = next((name for name, following in pairwise(ordered) if name == following), None)
    if twice is not None:
        yield f"{place}{field} is {_shown(twice)} more than once, expected each once"


def _unknown(place: str, name: str | None, known: set[str], what: str) -> Iterator[str]:
    if name is not None and name not in known:
        yield f"{place} is {_shown(name)}, expected the {'id' if 'conversion' in what else 'name'} of a {what}"


def _shown(name: str) -> str:
    """A name as an error quotes it; a file may hold one of megabytes."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


DEFAULT_MOST_BYTES = 8 << 30
"""Unpacked bytes that are read of a trace without being asked for more: 8 GiB take a minute or two."""

DEFAULT_MOST_SAVED_BYTES = 128 << 20
"""Bytes of a saved diagnosis that are read without being asked for more; the largest ones known have 15 MiB."""


MOST_PLAIN_ENTRIES = 1_000
"""Nodes, buffers and kernels that stand in a file as they are, of all trials together; more are packed."""

MOST_UNPACKED_BYTES = 64 << 20
_MOST_DICTIONARY_BYTES = 64 << 20
_PRESET = 3
"""The lowest of xz that sees megabytes of lists as a whole; higher ones gain little and take six times as long."""

_UNSEEN = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls, line separators, marks of direction and characters without width; what is below a space JSON escapes."""


def to_json(diagnosis: Diagnosis) -> bytes:
    """
    The diagnosis as JSON, by the contract, on one line; what the contract does not name is left out where not known.

    Args:
        diagnosis: Any diagnosis. Its lists of nodes, buffers and kernels are packed where they are long, and a kernel
            list that is another trial's, because their code is the same, stands there alone.
    """
    return encoded(_packed(_with_kernel_lists(diagnosis, _without_list_of_another)))


class _GraphLists(msgspec.Struct, frozen=True):
    """What is packed of a graph."""

    nodes: tuple[FxNode, ...] = ()
    buffers: tuple[Buffer, ...] = ()


class _TrialLists(msgspec.Struct, frozen=True):
    """What is packed of a trial."""

    graphs: tuple[_GraphLists, ...]
    kernels: tuple[Kernel, ...] = ()


def _with_kernel_lists(
    diagnosis: Diagnosis, change: Callable[[KernelSummary, KernelSummary], KernelSummary]
) -> Diagnosis:
    """With changed kernels in each trial of the same code as another, which are given beside its own."""

    def changed(trial: Trial) -> Trial:
        other = diagnosis.find_trial(trial.same_as) if trial.same_as is not None else None
        if trial.kernels is None or other is None or other.kernels is None or other.same_as is not None:
            return trial
        return replace(trial, kernels=change(trial.kernels, other.kernels))

    return replace(diagnosis, trials=tuple(map(changed, diagnosis.trials)))


def _without_list_of_another(own: KernelSummary, other: KernelSummary) -> KernelSummary:
    return replace(own, kernels=()) if own.kernels == other.kernels else own


def _with_list_of_another(own: KernelSummary, other: KernelSummary) -> KernelSummary:
    return replace(own, kernels=other.kernels) if own.count == other.count and not own.kernels else own


def _packed(diagnosis: Diagnosis) -> Diagnosis:
    """With all lists packed together: trials differ in few of their nodes, and equal ones then take no room."""
    lists = tuple(map(_lists_of, diagnosis.trials))
    graphs = [graph for trial in lists for graph in trial.graphs]
    count = sum(len(graph.nodes) + len(graph.buffers) for graph in graphs) + sum(len(trial.kernels) for trial in lists)
    if count <= MOST_PLAIN_ENTRIES:
        return diagnosis
    try:
        import lzma  # late: some builds of Python have none
    except ImportError:
        return diagnosis
    data = msgspec.json.encode(lists)
    if len(data) > MOST_UNPACKED_BYTES:  # of a long trace, which would take seconds
        return diagnosis
    data = lzma.compress(data, preset=_PRESET)
    empty = (_TrialLists(tuple(_GraphLists() for _ in trial.graphs)) for trial in diagnosis.trials)
    return replace(_with_lists(diagnosis, empty), packed=base64.b64encode(data).decode())


def _unpacked(diagnosis: Diagnosis) -> Diagnosis:
    """
    The diagnosis with all lists in their own fields.

    Raises:
        ImportError: This Python has no lzma.
        RecordError: What is packed is none of that, too much, or of other trials.
    """
    if diagnosis.packed is None:
        return diagnosis
    import lzma

    try:
        inflating = lzma.LZMADecompressor(memlimit=_MOST_DICTIONARY_BYTES)
        data = inflating.decompress(base64.b64decode(diagnosis.packed, validate=True), MOST_UNPACKED_BYTES)
        if not inflating.eof:
            raise RecordError(f"$.packed is cut off or holds more than {format_bytes(MOST_UNPACKED_BYTES)}")
        lists = msgspec.json.decode(data, type=tuple[_TrialLists, ...])
        return replace(_with_lists(diagnosis, lists), packed=None)
    except (lzma.LZMAError, ValueError, *UNREADABLE) as error:
        raise RecordError(f"$.packed cannot be unpacked: {reason_of(error)}") from error


def _lists_of(trial: Trial) -> _TrialLists:
    graphs = tuple(_GraphLists(graph.nodes, graph.buffers) for graph in trial.graphs)
    return _TrialLists(graphs, trial.kernels.kernels if trial.kernels is not None else ())


def _with_lists(diagnosis: Diagnosis, lists: Iterable[_TrialLists]) -> Diagnosis:
    """
    With these lists in its trials, in their order.

    Raises:
        ValueError: There are more or fewer trials, or graphs of one.
    """
    trials = []
    for trial, own in zip(diagnosis.trials, lists, strict=True):
        pairs = zip(trial.graphs, own.graphs, strict=True)
        graphs = tuple(replace(graph, nodes=given.nodes, buffers=given.buffers) for graph, given in pairs)
        kernels = replace(trial.kernels, kernels=own.kernels) if trial.kernels is not None else None
        trials.append(replace(trial, graphs=graphs, kernels=kernels))
    return replace(diagnosis, trials=tuple(trials))


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
    data = data.removeprefix(BYTE_ORDER_MARK)
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
    try:
        diagnosis = _with_kernel_lists(_unpacked(diagnosis), _with_list_of_another)
    except ImportError as error:
        raise RecordError(
            f"cannot read {name}: its lists are packed, and this Python was built without lzma; read it elsewhere"
        ) from error
    except RecordError as error:
        raise RecordError(f"cannot read {name}: {error}; it was changed after it was saved: diagnose again") from error
    problem = first_problem(diagnosis)
    if problem is not None:
        raise RecordError(f"cannot read {name}: {problem}; it was changed after it was saved: diagnose again")
    return diagnosis


def load(path: str | Path, max_bytes: int = DEFAULT_MOST_SAVED_BYTES) -> Diagnosis:
    """
    Reads a saved diagnosis.

    Args:
        path: A file written by ``Diagnosis.save`` or ``--output FILE.json``.
        max_bytes: A file with more bytes is refused; to read one takes several times its size in memory.

    Raises:
        RecordError: The file cannot be read, is too large, or is no diagnosis.
    """
    return from_json(read_saved(path, max_bytes), repr(str(path)))


class _Head(msgspec.Struct):
    """As much as says whether it is a diagnosis that can be read; a comparison has a kind."""

    schema_version: int
    kind: str = ""
