"""
The account of a difference: which operations make one configuration slower than another, and by how many seconds.

Kernels of the two configurations share a row if they have a common place: a module and line of the model. A fused
kernel has the places of all operations fused into it, so it joins their rows. Forward, backward, library calls and
conversions have separate rows. Two further rows hold time without kernels: inside library calls, and between calls.
The last row is the rest, so that all rows sum to the measured difference.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from layoutdoctor.diagnosis import (
    Account,
    AccountKind,
    AccountRow,
    Buffer,
    Conversion,
    Diagnosis,
    FxNode,
    Graph,
    Kernel,
    Layout,
    SourceLocation,
    Trial,
)
from layoutdoctor.diagnosis.answer import FASTER
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.account_rows import sum_row, without_small
from layoutdoctor.examination.counts import launch_count
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.costs import launches_that_ran
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name, convolves
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import OWNER_WORDS, TENSOR_WORDS, count_of, distinct, plural

_CALL = re.compile(r"conv|mm$|mv$|^addbmm|linear$|_linear_|matmul|inner_product|attention|rnn|lstm|gru")
"""Matches operations that libraries run, by their base names or by the names of oneDNN's primitives."""

_MOVING = frozenset(
    "cat concat concatenate stack repeat repeat_interleave clone contiguous copy_ copy pad constant_pad_nd roll flip "
    "zeros zeros_like new_zeros full full_like fill fill_ zero_ zero".split()
)
"""Operations that move or set data and compute nothing; names of the user's calls and of ATen's operators."""
_OF_ANY_OPERATION = ("operation", "generated_kernel", "missing_fusion")

_LEAST_SHARE_OF_A_CALL = 0.03

_Key = tuple[bool, bool, str, str]
"""The key of a place: whether it is in the backward, whether it is a library call, the kind of place, and its name."""


def accounts_of(diagnosis: Diagnosis) -> tuple[Account, ...]:
    """
    Returns the accounts of a diagnosis: the baseline against the recommended configuration, and the baseline against
    the fastest eager configuration that is certainly faster.

    An account is left out if the baseline is not slower, or if one of the two trials has no kernel times. The account
    shows sources of generated kernels only if the baseline's graphs still hold the sources.
    """
    faster = {name: ratio.median for name, ratio in diagnosis.ratios.items() if ratio.verdict == FASTER}
    eager = [
        trial.name for trial in diagnosis.trials if trial.configuration.backend == "eager" and trial.name in faster
    ]
    wanted = (diagnosis.recommended_name, max(eager, key=lambda name: faster[name], default=None))
    slower = diagnosis.measured_trial(diagnosis.compared_with)
    others = [diagnosis.measured_trial(name) for name in distinct(wanted) if name != diagnosis.compared_with]
    found = [account(slower, other) for other in others if slower is not None and other is not None]
    return tuple(one for one in found if one is not None and one.slower_seconds > one.faster_seconds)


def account(slower: Trial, faster: Trial) -> Account | None:
    """
    Returns the account of the difference between two trials.

    Args:
        slower: The trial whose call takes longer. If its call is shorter, the rows sum to a negative time.

    Returns:
        The account; its last row, ``outside_kernels``, is the rest of the measured difference. None if a trial has no
        time of its call or no times of its kernels, or if both are the same trial.
    """
    sides = _sides_of(slower, faster)
    if sides is None:
        return None
    slow, fast = sides
    sources = {name: source for graph in slower.graphs for name, source in graph.kernel_sources.items()}
    difference = slow.seconds - fast.seconds
    rows = [*_conversion_rows(slow, fast), *_group_rows(slow, fast, sources), *_host_rows(slower, faster)]
    kept = without_small(rows, difference)
    left = difference - sum(row.seconds for row in kept)
    counts = f"{len(slow.pieces)} against {len(fast.pieces)} kernels"
    return _account(slow, fast, [*kept, AccountRow(kind="outside_kernels", seconds=left, detail=counts)])


def account_of_convolutions(slower: Trial, faster: Trial) -> Account | None:
    """
    Returns an account of the convolutions alone: one row for each place, including its conversions.

    The rows do not sum to the difference of the calls, and small rows are kept. None for the same reasons as in
    ``account``, or if no convolution has a kernel.
    """
    sides = _sides_of(slower, faster)
    if sides is None:
        return None
    rows = []
    for group in _groups(*sides):
        # own: the convolutions in each side's kernels. needed: the conversions inside these or required by them.
        own = [
            {(p.kernel.graph, node.name) for p in side for node in p.nodes if convolves(node.target)} for side in group
        ]
        needed = [
            [one for _, one in side.conversions if nodes & {(one.graph, name) for name in (one.node, *one.required_by)}]
            for side, nodes in zip(sides, own, strict=True)
        ]
        if any(own):
            rows.append(_with_conversions(_row([group], {}), *needed))
    return _account(*sides, sorted(rows, key=lambda row: -row.seconds)) if rows else None


def _with_conversions(row: AccountRow, slow: Sequence[Conversion], fast: Sequence[Conversion]) -> AccountRow:
    """Adds the times of conversions to both sides of a row, and writes their numbers into ``detail``."""
    times = [sum(conversion.seconds or 0.0 for conversion in side) for side in (slow, fast)]
    counts = [launch_count(side) for side in (slow, fast)]
    return msgspec.structs.replace(
        row,
        seconds=row.seconds + times[0] - times[1],
        slower_seconds=(row.slower_seconds or 0.0) + times[0],
        faster_seconds=(row.faster_seconds or 0.0) + times[1],
        detail=f"{count_of(counts[0], 'conversion')} against {counts[1] or 'none'}" if any(counts) else None,
    )


@dataclass
class _Piece:
    """
    A kernel, and its time without the conversions that are part of it.

    Attributes:
        layout: Layout of an operation's first input, or of the largest buffer that a generated kernel writes.
        tensor_bytes: Bytes of the 4-D and 5-D tensors, except weights, that an operation reads and writes; None for a
            generated kernel, or if not known.
        output_shape: Output shape of a library call; None if not known.
        position: Position of a library call among the nodes of its graph; -1 for other kernels.
    """

    kernel: Kernel
    seconds: float
    backward: bool
    nodes: Sequence[FxNode] = ()
    layout: Layout | None = None
    tensor_bytes: int | None = None
    output_shape: Hashable = None
    position: int = -1

    @property
    def is_call(self) -> bool:
        return self.position >= 0

    @property
    def is_generated(self) -> bool:
        return self.kernel.library == "inductor"

    @property
    def operations(self) -> list[str]:
        if not self.nodes and not self.is_generated:
            return [(self.kernel.op or self.kernel.name).removeprefix("aten::")]
        return distinct(map(called_name, self.nodes))

    @property
    def locations(self) -> list[SourceLocation]:
        """The source lines of the kernel's operations; the operation with the largest result comes first."""
        ordered = sorted(self.nodes, key=lambda node: -(tensor_bytes(node.layout, node.dtype) or 0))
        return distinct(node.location for node in ordered)

    @property
    def module(self) -> str | None:
        return next((node.module for node in self.nodes if node.module is not None), None)

    @property
    def keys(self) -> list[_Key]:
        """The keys of the kernel's places. A place is a module and line; if both are unknown, it is the operation."""
        if not self.nodes and not self.operations:
            return [(False, False, "alone", str(id(self)))]
        return self.places(is_call=self.is_call)

    def places(self, *, is_call: bool) -> list[_Key]:
        """The keys of the kernel's places; keys of library calls (``is_call``) differ from keys of other kernels."""
        if not self.nodes:
            return [(self.backward, is_call, "operation", name) for name in self.operations]
        return [
            (self.backward, is_call, "place", f"{node.module} {node.location}")
            if node.location is not None or node.module is not None
            else (self.backward, is_call, "operation", called_name(node))
            for node in self.nodes
        ]


def called_name(node: FxNode) -> str:
    """The base name of the function that the user called; for autograd's operations, the operator's base name."""
    return base_name(node.called or node.target)


class _Side(NamedTuple):
    """
    One of the two configurations of an account.

    Attributes:
        seconds: The time of a call.
        conversions: Conversions with a known time, each paired with whether it runs in the backward.
    """

    name: str
    seconds: float
    pieces: list[_Piece]
    conversions: list[tuple[bool, Conversion]]


def _sides_of(slower: Trial, faster: Trial) -> tuple[_Side, _Side] | None:
    """Both configurations; None if a trial has no time of its call or of its kernels, or if both are one trial."""
    slow, fast = _side_of(slower), _side_of(faster)
    return None if slow is None or fast is None or slower is faster else (slow, fast)


def _account(slow: _Side, fast: _Side, rows: Sequence[AccountRow]) -> Account:
    return Account(
        slower=slow.name,
        faster=fast.name,
        slower_seconds=slow.seconds,
        faster_seconds=fast.seconds,
        rows=tuple(rows),
    )


def _side_of(trial: Trial) -> _Side | None:
    summary, call_seconds = trial.kernel_summary, trial.seconds
    if call_seconds is None or not summary.kernels or not summary.seconds:
        return None
    if any(kernel.seconds is None for kernel in summary.kernels):
        return None
    graphs = {graph.name: graph for graph in trial.graphs}
    nodes = {graph.name: {node.name: node for node in graph.nodes} for graph in trial.graphs}
    writers: dict[tuple[str, str], int] = {}
    pieces: list[_Piece | None] = [None] * len(summary.kernels)
    for graph, launches, numbers in launches_that_ran(trial.graphs, summary.kernels):
        for position, launch in numbers.items():
            pieces[position] = _generated(summary.kernels[position], graph, launches[launch], nodes[graph.name])
            writers |= {(graph.name, buffer.name): position for buffer in launches[launch]}
    found = [
        piece or _called(kernel, graphs.get(str(kernel.graph)), nodes.get(str(kernel.graph), {}))
        for piece, kernel in zip(pieces, summary.kernels, strict=True)
    ]
    split_off = list(_split_off(trial, found, writers))  # subtracts their times from those of the kernels
    return _Side(trial.name, call_seconds, found, split_off)


def _generated(kernel: Kernel, graph: Graph, buffers: Sequence[Buffer], nodes: Mapping[str, FxNode]) -> _Piece:
    """Makes the piece of a generated kernel; it has the places of all operations fused into the kernel."""
    # A buffer that is part of a concatenation also has the concatenation's place: no kernel writes the whole result.
    wholes = {buffer.alias_of for buffer in buffers} - {None}
    parents = [buffer for buffer in graph.buffers if buffer.name in wholes]
    names = (name for buffer in (*buffers, *parents) for name in buffer.origins)
    origins = [nodes[name] for name in distinct(names) if name in nodes]
    # Only operations that compute count, if there are any. The line of a constant says nothing, and the library call
    # for which a kernel prepares an input is also one of the kernel's origins.
    own = [node for node in origins if is_computed(node)]
    called = [node for node in origins if node.op == "call_function"]
    largest = max(buffers, key=lambda buffer: tensor_bytes(buffer.layout, buffer.dtype) or 0, default=None)
    return _Piece(
        kernel=kernel,
        seconds=kernel.seconds or 0.0,
        backward=graph.direction == "backward",
        nodes=own or called or origins,
        layout=None if largest is None else largest.layout,
    )


def is_computed(node: FxNode) -> bool:
    """Whether generated code computes a node: the node is no constant, view or library call."""
    name = base_name(node.target)
    is_moved = name in ALIASES or name in ("getitem", "slice", "select", "full", "permute", "view", "reshape", "expand")
    return node.op == "call_function" and bool(node.inputs) and not is_moved and not _CALL.search(name)


def _called(kernel: Kernel, graph: Graph | None, nodes: Mapping[str, FxNode]) -> _Piece:
    """Makes the piece of an ATen operation or of a library's primitive; its place is the line of the call."""
    node = nodes.get(str(kernel.node))
    backward = kernel.backward or (graph is not None and graph.direction == "backward")
    if node is None or graph is None:
        return _Piece(kernel, kernel.seconds or 0.0, backward)
    reads = [nodes[name] for name in distinct(node.inputs) if name in nodes]
    images = [
        each
        for each in (*reads, node)
        if each.tensor != "weight" and each.layout and len(each.layout.shape) in CHANNELS_LAST_BY_RANK
    ]
    return _Piece(
        kernel=kernel,
        seconds=kernel.seconds or 0.0,
        backward=graph.direction == "backward" or node.backward,
        nodes=(node,),
        layout=_layout_read(graph, node, next((e.layout for e in (*reads[:1], node) if e.layout is not None), None)),
        tensor_bytes=sum_if_all_known(0, *(tensor_bytes(each.layout, each.dtype) for each in images)),
        output_shape=node.layout and node.layout.shape,
        position=graph.nodes.index(node) if _CALL.search(base_name(node.target)) else -1,
    )


def _layout_read(graph: Graph, node: FxNode, traced: Layout | None) -> Layout | None:
    """The layout of the buffer that a compiled call reads; ``traced`` if no such buffer has the traced shape."""
    reads = {name for one in graph.buffers if one.is_extern and one.source_node == node.name for name in one.reads}
    made = (one.layout for one in graph.buffers if one.name in reads)
    return next((layout for layout in made if layout and traced and layout.shape == traced.shape), traced)


def _split_off(
    trial: Trial, pieces: Sequence[_Piece], launches: Mapping[tuple[str, str], int]
) -> Iterator[tuple[bool, Conversion]]:
    """
    Subtracts the times of conversions from the times of the kernels that contain them.

    Yields:
        Whether the conversion runs in the backward, and the conversion.
    """
    waiting: dict[Hashable, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        kernel = piece.kernel
        waiting[kernel.node, kernel.graph, kernel.seconds].append(piece)
        if not piece.is_generated:
            waiting[kernel.node, kernel.graph].append(piece)
    library = trial.kernel_summary.conversions
    for conversion in library:
        own = waiting[conversion.node, conversion.graph, conversion.seconds]
        if own and conversion.direction != "none":
            yield _taken(own.pop(0), conversion)
    known = {conversion.id for conversion in library}
    for graph in trial.graphs:
        for conversion in graph.conversions:
            if conversion.fused or conversion.direction == "none" or conversion.seconds_source != "measured":
                continue
            position = launches.get((graph.name, str(conversion.value)))
            own = [pieces[position]] if position is not None else waiting[conversion.node, graph.name]
            if conversion.node is None and conversion.owner == "framework":  # outside of all graphs: found by its time
                own = waiting[None, None, conversion.seconds]
            if own and conversion.seconds and conversion.id not in known:
                yield _taken(max(own, key=lambda piece: piece.seconds), conversion)


def _taken(piece: _Piece, conversion: Conversion) -> tuple[bool, Conversion]:
    piece.seconds = max(0.0, piece.seconds - (conversion.seconds or 0.0))
    return piece.backward, conversion


def _conversion_rows(slower: _Side, faster: _Side) -> Iterator[AccountRow]:
    """Makes one row for all conversions with the same kind of tensor, owner, and direction (forward or backward)."""
    groups: dict[tuple[bool, str, str], tuple[list[Conversion], list[Conversion]]] = defaultdict(lambda: ([], []))
    for age, side in enumerate((slower, faster)):
        for backward, conversion in side.conversions:
            groups[backward, conversion.tensor, conversion.owner][age].append(conversion)
    for (backward, tensor, owner), own in groups.items():
        times = [sum(conversion.seconds or 0.0 for conversion in side) for side in own]
        dearest = sorted(own[0] if times[0] >= times[1] else own[1], key=lambda one: -(one.seconds or 0.0))
        counts = [launch_count(side) for side in own]
        what = count_of(counts[0], TENSOR_WORDS[tensor]) if counts[0] else f"no {TENSOR_WORDS[tensor]}"
        yield AccountRow(
            kind="conversion",
            seconds=times[0] - times[1],
            slower_seconds=times[0],
            faster_seconds=times[1],
            operations=(f"conversion of {plural(TENSOR_WORDS[tensor])}",),
            backward=backward,
            module=dearest[0].module,
            locations=tuple(distinct(one.location for one in dearest)),
            slower_kernels=tuple(distinct(conversion.kernel for conversion in own[0])),
            faster_kernels=tuple(distinct(conversion.kernel for conversion in own[1])),
            detail=f"{what} against {counts[1] or 'none'}, {OWNER_WORDS[owner]}",
        )


def _host_rows(slower: Trial, faster: Trial) -> Iterator[AccountRow]:
    """Makes rows for time in which no kernel runs: in library calls around their kernels, and between kernels."""
    of: tuple[tuple[AccountKind, str], ...] = (
        ("around_kernels", "around_seconds"),
        ("between_kernels", "between_seconds"),
    )
    for kind, field in of:
        slow, fast = (getattr(trial.kernel_summary, field) for trial in (slower, faster))
        if slow is not None and fast is not None:
            yield AccountRow(kind=kind, seconds=slow - fast, slower_seconds=slow, faster_seconds=fast)


_Group = tuple[list[_Piece], list[_Piece]]
"""The pieces of the slower and of the faster configuration that share a place."""


def _group_rows(slow: _Side, fast: _Side, sources: Mapping[str, str]) -> Iterator[AccountRow]:
    """
    Makes one row for each place, and one row for all library calls that only one side has.

    Similar places, such as one place in every layer, share a row. Places are similar if they have the same
    operations and only one side fuses these, or if each side runs one implementation for all of the places.
    """
    alone: list[AccountRow] = []
    alike: dict[Hashable, list[_Group]] = defaultdict(list)
    for number, group in enumerate(_groups(slow, fast)):
        row, pieces = _row([group], sources), (*group[0], *group[1])
        generated = [piece for piece in pieces if piece.is_generated]
        if generated and any(piece.is_call for piece in pieces):
            fused = frozenset(name for piece in generated for name in piece.operations)
            alike[row.kind, fused, row.backward].append(group)
        elif not (group[0] and group[1]) and any(piece.is_call for piece in pieces):
            alone.append(row)
        elif row.kind == "missing_fusion":
            alike[frozenset(row.operations), row.backward].append(group)
        elif row.kind == "implementation" or (row.kind == "operation" and any(piece.is_call for piece in pieces)):
            codes = tuple(tuple(distinct(_kernel_names(_computing(side)))) for side in group)
            alike[row.kind, row.operations, row.backward, row.seconds > 0, codes].append(group)
        else:
            alike[number].append(group)
    yield from (_row(groups, sources) for groups in alike.values())
    if alone:
        yield sum_row("not_aligned", alone)


def _groups(slow: _Side, fast: _Side) -> list[_Group]:
    """Groups the pieces of both sides that are to be compared with each other."""
    return _with_fused(_with_calls_in_order(_connected(slow, fast)))


def _computing(pieces: Iterable[_Piece]) -> list[_Piece]:
    """
    The pieces without oneDNN's reorders.

    The time of a reorder that converts a layout is in a row of its own, but the reorder is still in its group.
    """
    return [piece for piece in pieces if piece.kernel.name != "reorder"]


def _with_calls_in_order(groups: Sequence[_Group]) -> list[_Group]:
    """
    Pairs the library calls that only one configuration has at their place, in their order.

    Calls are paired if both configurations have equally many such calls with the same output shape. The places of a
    pair differ, because a call has the place of the last operation fused into it. Other groups are unchanged.
    """
    left: dict[Hashable, tuple[list[list[_Piece]], list[list[_Piece]]]] = defaultdict(lambda: ([], []))
    found = []
    for group in groups:
        age = 0 if group[0] else 1
        if group[1 - age] or not all(piece.is_call for piece in group[age]):
            found.append(group)
            continue
        # A place has several calls if the calls share an activation module. A call may run several primitives.
        for _, call in itertools.groupby(sorted(group[age], key=_position), _position):
            pieces = list(call)
            left[pieces[0].backward, pieces[0].output_shape][age].append(pieces)
    for sides in left.values():
        slow, fast = (sorted(side, key=lambda pieces: _position(pieces[0])) for side in sides)
        if len(slow) == len(fast):
            found += zip(slow, fast, strict=True)
        else:
            found += [*((pieces, []) for pieces in slow), *(([], pieces) for pieces in fast)]
    return found


def _with_fused(groups: Sequence[_Group]) -> list[_Group]:
    """
    Adds one side's generated kernels to the group of the library call into which the other side fuses their operations.

    The fused call does more work than the plain call of the first side. Only the plain call and the generated kernels
    together can be compared with the fused call.
    """
    alone: dict[tuple[int, _Key], int] = {}
    for number, group in enumerate(groups):
        age = 0 if group[0] else 1
        if not group[1 - age] and all(piece.is_generated for piece in group[age]):
            alone |= {(age, key): number for piece in group[age] for key in piece.places(is_call=True)}
    added = set[int]()
    for group in groups:
        for age in (0, 1) if group[0] and group[1] else ():
            of_calls = [key for piece in group[1 - age] if piece.is_call for key in piece.keys]
            for number in distinct(alone[age, key] for key in of_calls if (age, key) in alone):
                if number not in added:
                    group[age].extend(groups[number][age])
                    added.add(number)
    return [group for number, group in enumerate(groups) if number not in added]


def _position(piece: _Piece) -> tuple[str, int]:
    return piece.kernel.graph or "", piece.position


def _connected(*sides: _Side) -> list[_Group]:
    """Groups the pieces that share a place, directly or through other pieces."""
    import networkx as nx  # late: no trace needs networkx

    graph = nx.Graph()
    for piece in itertools.chain(*(side.pieces for side in sides)):
        nx.add_path(graph, piece.keys)
    number = {key: count for count, keys in enumerate(nx.connected_components(graph)) for key in keys}
    groups: dict[int, _Group] = defaultdict(lambda: ([], []))
    for age, side in enumerate(sides):
        for piece in side.pieces:
            groups[number[piece.keys[0]]][age].append(piece)
    return list(groups.values())


def _row(groups: Sequence[_Group], sources: Mapping[str, str]) -> AccountRow:
    """Makes the row of one place, or of several similar places."""
    slow, fast = ([piece for group in groups for piece in group[age]] for age in (0, 1))
    times = [sum(piece.seconds for piece in side) for side in (slow, fast)]
    is_dearer = times[0] >= times[1]
    dear, cheap = (slow, fast) if is_dearer else (fast, slow)
    first = sorted(dear or cheap, key=lambda piece: -piece.seconds)
    layouts = [max(side, key=lambda piece: piece.seconds).layout if side else None for side in (slow, fast)]
    named = [piece for piece in slow if piece.is_call]
    generated = [piece for piece in first if piece.is_generated]
    kind = _kind(dear, cheap, layouts)
    if kind == "missing_fusion" and generated:
        named = generated
    # A library call is named by the slower side: the faster side may name an operation that is fused into the call.
    operations = tuple(distinct(name for piece in (named or first) for name in piece.operations))
    return AccountRow(
        kind="data_movement" if kind in _OF_ANY_OPERATION and _MOVING.issuperset(operations) else kind,
        source=sources.get(generated[0].kernel.name) if generated and is_dearer and len(groups) == 1 else None,
        seconds=times[0] - times[1],
        slower_seconds=times[0],
        faster_seconds=times[1],
        operations=operations,
        backward=first[0].backward,
        module=first[0].module,
        locations=tuple(dict.fromkeys(place for piece in first for place in piece.locations)),
        slower_kernels=tuple(distinct(name for group in groups for name in _kernel_names(group[0]))),
        faster_kernels=tuple(distinct(name for group in groups for name in _kernel_names(group[1]))),
        slower_layout=layouts[0],
        faster_layout=layouts[1],
        tensor_bytes=sum_if_all_known(*(piece.tensor_bytes for piece in slow)),
        count=len(groups),
    )


def _kind(dear: Sequence[_Piece], cheap: Sequence[_Piece], layouts: Sequence[Layout | None]) -> AccountKind:
    """The reason why one side takes longer, as far as the kernels' names and layouts show it."""
    is_another_layout = _are_in_other_formats(dear, cheap, layouts)
    if any(piece.is_call for piece in dear):
        falls_back = [any(is_fallback(piece.kernel) for piece in side) for side in (dear, cheap)]
        fused = sum(piece.seconds for piece in dear if piece.is_generated)
        is_fused = 2 * fused > sum(piece.seconds for piece in dear) - sum(piece.seconds for piece in cheap)
        if falls_back == [True, False] and cheap and not is_fused:
            return "implementation"  # whatever the layouts are: no library ran the convolution
        if is_another_layout:
            return "layout"
        if is_fused:
            return "missing_fusion"
        kernels = ([piece.kernel for piece in _computing(side)] for side in (dear, cheap))
        codes = [{kernel.implementation for kernel in side if kernel.implementation} for side in kernels]
        return "implementation" if cheap and codes[0] != codes[1] else "operation"
    if not cheap:  # operations without a line or module of the model cannot be fused
        return "missing_fusion" if any(piece.locations or piece.module for piece in dear) else "operation"
    in_cheap = any(piece.is_generated for piece in cheap)
    if any(piece.is_generated for piece in dear):
        return "layout" if in_cheap and is_another_layout else "generated_kernel"
    if in_cheap:
        return "missing_fusion"
    return "layout" if is_another_layout else "operation"


def _are_in_other_formats(dear: Sequence[_Piece], cheap: Sequence[_Piece], layouts: Sequence[Layout | None]) -> bool:
    """Whether the longest kernels of both sides have one shape, but kernels of this shape share no memory format."""
    slow, fast = layouts
    if slow is None or fast is None or slow.shape != fast.shape:
        return False
    known = [[piece.layout for piece in side if piece.layout is not None] for side in (dear, cheap)]
    formats = [{name for one in side if one.shape == slow.shape for name in one.memory_formats} for side in known]
    return all(formats) and not formats[0] & formats[1]


def _kernel_names(pieces: Sequence[_Piece]) -> Iterator[str]:
    """Names of kernels, the slowest first, without negligible steps of library calls (``aten::_nnpack_available``)."""
    least = _LEAST_SHARE_OF_A_CALL * sum(piece.seconds for piece in pieces)
    for piece in sorted(pieces, key=lambda piece: -piece.seconds):
        if piece.is_generated or piece.seconds >= least:
            code = piece.kernel.implementation
            yield piece.kernel.name if code is None else f"{piece.kernel.name} {code}"
