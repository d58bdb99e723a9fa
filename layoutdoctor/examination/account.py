"""
The account of a difference: which operations make one configuration slower than another, and by how many seconds.

Kernels of both sides stand together where they run the same operations: those of one module and line, forward and
backward apart, and a fused kernel with all that is fused into it. A library call stands for itself, and conversions are
rows of their own. What the kernels do not explain is a row as well, so that all rows sum to the measured difference.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import FASTER, Account, AccountRow
from layoutdoctor.examination.costs import launch_count, launch_numbers, launches_of, shared_names
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name
from layoutdoctor.examination.graphs.regions import known_sum
from layoutdoctor.examination.kernels.names import is_fallback
from layoutdoctor.words import OWNER_WORDS, TENSOR_WORDS, count_of, distinct, plural

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        AccountKind,
        Buffer,
        Comparison,
        Conversion,
        Diagnosis,
        FxNode,
        Graph,
        Kernel,
        Recommendation,
        SourceLocation,
        Trial,
    )

_CALL = re.compile(r"conv|mm$|mv$|^addbmm|linear$|_linear_|matmul|inner_product|attention|rnn|lstm|gru")
"""Operations that libraries run, by their base names and by the names of oneDNN's primitives."""

_LEAST_SHARE_OF_A_CALL = 0.03

_MOST_ROWS = 30
_SMALL_SHARE = 0.01
"""Of the difference: rows that contribute less become one row."""

_Key = tuple[bool, str, str]
"""Whether it runs in the backward, and where: the kind of place, and its name."""


def accounts_of(diagnosis: Diagnosis) -> tuple[Account, ...]:
    """
    The differences that a user asks about: the default against the recommended, and against eager if that is faster.

    A pair without times of kernels has no account, nor one whose kernels contradict the measured difference. The
    sources of generated kernels are taken from the graphs, if these still have them.
    """
    if diagnosis.comparison is None:
        return ()
    names = differences(diagnosis.comparison, diagnosis.recommendation, diagnosis.trials)
    pairs = ((diagnosis.measured_trial(slower), diagnosis.measured_trial(other)) for slower, other in names)
    found = [account(slower, other) for slower, other in pairs if slower is not None and other is not None]
    return tuple(one for one in found if one is not None and _is_borne_out(one))


def _is_borne_out(account: Account) -> bool:
    """Whether the kernels differ by up to twice the measured difference, or by no more than that the other way."""
    difference = account.slower_seconds - account.faster_seconds
    return difference > 0 and -difference <= account.rows[-1].seconds <= 2 * difference


def differences(
    comparison: Comparison, recommendation: Recommendation | None, trials: Iterable[Trial]
) -> list[tuple[str, str]]:
    """The default before each of what a user compares it with: the recommended, and the fastest eager code."""
    faster = {ratio.name: ratio.median for ratio in comparison.ratios if ratio.verdict == FASTER}
    eager = [trial.name for trial in trials if trial.configuration.backend == "eager" and trial.name in faster]
    wanted = [recommendation.configuration if recommendation is not None else None]
    wanted.append(max(eager, key=lambda name: faster[name], default=None))
    return [(comparison.baseline, name) for name in distinct(wanted) if name != comparison.baseline]


def account(slower: Trial, faster: Trial) -> Account | None:
    """
    Where the difference between two trials goes; None if the kernels of one have no times.

    Args:
        slower: The one whose call takes longer; if it does not, contributions are negative.

    Returns:
        The last row is ``outside_kernels``: the rest of the measured difference.
    """
    if slower.measurement is None or faster.measurement is None or slower is faster:
        return None
    slow, fast = _side_of(slower), _side_of(faster)
    if slow is None or fast is None:
        return None
    times = slower.measurement.median_seconds, faster.measurement.median_seconds
    sources = {name: source for graph in slower.graphs for name, source in graph.kernel_sources.items()}
    rows = [*_conversion_rows(slow, fast)]
    rows += map(_as_one, _in_groups(_group_rows(slow[0], fast[0], sources)))
    kept = _told(rows, times[0] - times[1])
    left = times[0] - times[1] - sum(row.seconds for row in kept)
    counts = f"{len(slow[0])} against {len(fast[0])} kernels"
    kept.append(AccountRow(kind="outside_kernels", seconds=left, detail=counts))
    return Account(
        slower=slower.name, faster=faster.name, slower_seconds=times[0], faster_seconds=times[1], rows=tuple(kept)
    )


_Nodes = dict[tuple[str, str], "FxNode"]
"""By the names of graph and node."""


@dataclass
class _Piece:
    """
    A kernel without the conversions in it.

    Attributes:
        keys: Where it stands.
        operations: What it computes.
        layout: Of what an operation reads first, or of the largest that a generated kernel writes.
        tensor_bytes: Of the activations that an operation reads and writes.
        call: Of a library call: the shape that it returns, and its number among the nodes of its graph.
    """

    kernel: Kernel
    seconds: float
    keys: frozenset[_Key]
    operations: tuple[str, ...] = ()
    locations: tuple[SourceLocation, ...] = ()
    module: str | None = None
    layout: Layout | None = None
    backward: bool = False
    tensor_bytes: int | None = None
    call: tuple[Hashable, int] | None = None

    @property
    def is_generated(self) -> bool:
        return self.kernel.library == "inductor"


_Side = tuple[list[_Piece], list[tuple[bool, "Conversion"]]]
"""One configuration: its kernels, and the conversions with a time of their own and whether they are in the backward."""


def _side_of(trial: Trial) -> _Side | None:
    kernels = trial.kernels
    if kernels is None or not kernels.kernels or not kernels.seconds:
        return None
    if any(kernel.seconds is None for kernel in kernels.kernels):
        return None
    graphs = {graph.name: graph for graph in trial.graphs}
    nodes = {(graph.name, node.name): node for graph in trial.graphs for node in graph.nodes}
    launches, written = _launches(trial)
    pieces = [
        _generated(kernel, *written[position], nodes)
        if position in written
        else _called(kernel, nodes.get((str(kernel.graph), str(kernel.node))), graphs.get(str(kernel.graph)), nodes)
        for position, kernel in enumerate(kernels.kernels)
    ]
    return pieces, list(_split_off(trial, pieces, launches))


def _launches(trial: Trial) -> tuple[dict[tuple[str, str], int], dict[int, tuple[Graph, list[Buffer]]]]:
    """By graph and buffer the position of the kernel that writes it, and by position what a kernel writes."""
    kernels = trial.kernels.kernels if trial.kernels is not None else ()
    shared = shared_names(trial.graphs)
    by_buffer: dict[tuple[str, str], int] = {}
    written: dict[int, tuple[Graph, list[Buffer]]] = {}
    for graph in trial.graphs:
        launches = launches_of(graph)
        for position, launch in launch_numbers(graph, launches, kernels).items():
            if kernels[position].graph is None and kernels[position].name in shared:
                continue
            written[position] = graph, launches[launch]
            by_buffer |= {(graph.name, buffer.name): position for buffer in launches[launch]}
    return by_buffer, written


def _generated(
    kernel: Kernel, graph: Graph, buffers: Sequence[Buffer], nodes: Mapping[tuple[str, str], FxNode]
) -> _Piece:
    """A generated kernel, which stands where the operations stand that are fused into it."""
    whole = {buffer.name: buffer for buffer in graph.buffers} if any(buffer.alias_of for buffer in buffers) else {}
    # A part of a concatenation is written where the whole stands, which no kernel writes.
    parents = [whole[buffer.alias_of] for buffer in buffers if buffer.alias_of in whole]
    names = [name for buffer in (*buffers, *parents) for name in buffer.origins]
    origins = [nodes[key] for name in names if (key := (graph.name, name)) in nodes]
    computed = [node for node in origins if _is_computed(node)]
    backward = graph.direction == "backward"
    # What only lays out anew for a library call has that call as its origin; a constant stands at any line.
    named = computed or [node for node in origins if node.op == "call_function"] or origins
    sizes = [(tensor_bytes(buffer.layout, buffer.dtype) or 0, buffer) for buffer in buffers]
    largest = max(sizes, key=lambda item: item[0])[1] if sizes else None
    return _Piece(
        kernel=kernel,
        seconds=kernel.seconds or 0.0,
        keys=frozenset(key for node in named for key in _keys(node, backward)),
        operations=tuple(distinct(_operation(node) for node in named)),
        locations=tuple(dict.fromkeys(node.location for node in named if node.location is not None)),
        module=next((node.module for node in named if node.module is not None), None),
        layout=None if largest is None else largest.layout,
        backward=backward,
    )


def _is_computed(node: FxNode) -> bool:
    name = base_name(node.target)
    is_moved = name in ALIASES or name in ("getitem", "slice", "select", "full", "permute", "view", "reshape", "expand")
    return node.op == "call_function" and bool(node.inputs) and not is_moved and not _CALL.search(name)


def _called(kernel: Kernel, node: FxNode | None, graph: Graph | None, nodes: _Nodes) -> _Piece:
    """An operation of ATen or a library's primitive, which stands at the line that called it."""
    backward = kernel.backward or (graph is not None and graph.direction == "backward")
    operation = (kernel.op or kernel.name).removeprefix("aten::")
    if node is None or graph is None:
        keys = frozenset({(backward, "operation", operation)})
        return _Piece(kernel, kernel.seconds or 0.0, keys, (operation,), backward=backward)
    backward = graph.direction == "backward" or node.backward
    reads = [nodes[key] for name in distinct(node.inputs) if (key := (graph.name, name)) in nodes]
    layout = node.layout if not reads or reads[0].layout is None else reads[0].layout
    sizes = [tensor_bytes(each.layout, each.dtype) for each in (*reads, node) if _has_formats(each)]
    call = None
    if _CALL.search(base_name(node.target)) is not None:
        call = (None if node.layout is None else node.layout.shape), graph.nodes.index(node)
    return _Piece(
        kernel=kernel,
        seconds=kernel.seconds or 0.0,
        keys=frozenset(_keys(node, backward, "" if call is None else "call ")),
        operations=(_operation(node),),
        locations=() if node.location is None else (node.location,),
        module=node.module,
        layout=layout,
        backward=backward,
        tensor_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
        call=call,
    )


def _has_formats(node: FxNode) -> bool:
    return node.tensor != "weight" and node.layout is not None and len(node.layout.shape) in (4, 5)


def _operation(node: FxNode) -> str:
    """As the user's line calls it; what autograd adds, by its own name."""
    return base_name(node.called or node.target)


def _keys(node: FxNode, backward: bool, kind: str = "") -> Iterator[_Key]:
    if node.location is not None or node.module is not None:
        yield backward, f"{kind}place", f"{node.module} {node.location}"
    else:
        yield backward, f"{kind}operation", _operation(node)


def _split_off(
    trial: Trial, pieces: Sequence[_Piece], launches: Mapping[tuple[str, str], int]
) -> Iterator[tuple[bool, Conversion]]:
    """The conversions whose time is a part of a kernel's, which loses it."""
    waiting: dict[Hashable, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        kernel = piece.kernel
        waiting[kernel.node, kernel.graph, kernel.seconds].append(piece)
        if not piece.is_generated:
            waiting[kernel.node, kernel.graph].append(piece)
    library = trial.kernels.conversions if trial.kernels is not None else ()
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
            if conversion.node is None and conversion.owner == "framework":  # outside of all graphs: what took so long
                own = waiting[None, None, conversion.seconds]
            if own and conversion.seconds and conversion.id not in known:
                yield _taken(max(own, key=lambda piece: piece.seconds), conversion)


def _taken(piece: _Piece, conversion: Conversion) -> tuple[bool, Conversion]:
    piece.seconds = max(0.0, piece.seconds - (conversion.seconds or 0.0))
    return piece.backward, conversion


def _conversion_rows(slower: _Side, faster: _Side) -> Iterator[AccountRow]:
    """Conversions of one kind of tensor and one owner together."""
    groups: dict[tuple[bool, str, str], tuple[list[Conversion], list[Conversion]]] = defaultdict(lambda: ([], []))
    for age, side in enumerate((slower, faster)):
        for backward, conversion in side[1]:
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
            locations=tuple(dict.fromkeys(one.location for one in dearest if one.location is not None)),
            slower_kernels=_names(conversion.kernel for conversion in own[0]),
            faster_kernels=_names(conversion.kernel for conversion in own[1]),
            detail=f"{what} against {counts[1] or 'none'}, {OWNER_WORDS[owner]}",
        )


_Group = tuple[list[_Piece], list[_Piece]]


def _group_rows(slow: Sequence[_Piece], fast: Sequence[_Piece], sources: Mapping[str, str]) -> Iterator[AccountRow]:
    """A row for each group of pieces that both sides have; library calls that one side alone has are one row."""
    alone: list[AccountRow] = []
    for group in _with_calls_in_order(_connected(slow, fast)):
        is_call_alone = not (group[0] and group[1]) and any(map(_is_call, (*group[0], *group[1])))
        row = _row(group, sources)
        if is_call_alone:
            alone.append(row)
        else:
            yield row
    if alone:
        yield _sum_row("not_aligned", alone)


def _with_calls_in_order(groups: Sequence[_Group]) -> list[_Group]:
    """
    Library calls that stand at other places brought together where as many of a shape are left on both sides.

    A call that other operations were fused into stands at the place of the last of them.
    """
    left: dict[Hashable, tuple[list[list[_Piece]], list[list[_Piece]]]] = defaultdict(lambda: ([], []))
    found = []
    for group in groups:
        age = 0 if group[0] else 1
        if group[1 - age] or not all(map(_is_call, group[age])):
            found.append(group)
            continue
        # One place has several where one module activates them all; one call several primitives.
        for _, call in itertools.groupby(sorted(group[age], key=_position), _position):
            pieces = list(call)
            left[pieces[0].backward, pieces[0].call and pieces[0].call[0]][age].append(pieces)
    for sides in left.values():
        slow, fast = (sorted(side, key=lambda pieces: _position(pieces[0])) for side in sides)
        if len(slow) == len(fast):
            found += zip(slow, fast, strict=True)
        else:
            found += [*((pieces, []) for pieces in slow), *(([], pieces) for pieces in fast)]
    return found


def _position(piece: _Piece) -> tuple[str, int]:
    return piece.kernel.graph or "", -1 if piece.call is None else piece.call[1]


def _is_call(piece: _Piece) -> bool:
    return piece.call is not None


def _connected(*sides: Sequence[_Piece]) -> list[_Group]:
    """Pieces that stand at a common place, directly or through others."""
    import networkx as nx  # late: a trace needs none

    graph = nx.Graph()
    for piece in itertools.chain(*sides):
        nx.add_path(graph, piece.keys or (id(piece),))
    number = {key: count for count, keys in enumerate(nx.connected_components(graph)) for key in keys}
    groups: dict[int, _Group] = defaultdict(lambda: ([], []))
    for age, pieces in enumerate(sides):
        for piece in pieces:
            groups[number[next(iter(piece.keys), id(piece))]][age].append(piece)
    return list(groups.values())


def _row(group: _Group, sources: Mapping[str, str]) -> AccountRow:
    times = [sum(piece.seconds for piece in side) for side in group]
    is_dearer = times[0] >= times[1]
    dear, cheap = (group[0], group[1]) if is_dearer else (group[1], group[0])
    first = sorted(dear or cheap, key=lambda piece: -piece.seconds)
    layouts = [max(side, key=lambda piece: piece.seconds).layout if side else None for side in group]
    named = [piece for piece in group[0] if _is_call(piece)]
    generated = [piece.kernel.name for piece in first if piece.is_generated and is_dearer]
    source = sources.get(generated[0]) if generated else None
    return AccountRow(
        kind=_kind(dear, cheap, layouts),
        source=source,
        seconds=times[0] - times[1],
        slower_seconds=times[0],
        faster_seconds=times[1],
        # A call is called after the operations that are fused into it: by the slower side, which has them apart.
        operations=tuple(distinct(name for piece in (named or first) for name in piece.operations)),
        backward=first[0].backward,
        module=first[0].module,
        locations=tuple(sorted({place for piece in first for place in piece.locations}, key=_in_file)),
        slower_kernels=_kernel_names(group[0]),
        faster_kernels=_kernel_names(group[1]),
        slower_layout=layouts[0],
        faster_layout=layouts[1],
        tensor_bytes=known_sum(*(piece.tensor_bytes for piece in group[0])),
    )


def _kind(dear: Sequence[_Piece], cheap: Sequence[_Piece], layouts: Sequence[Layout | None]) -> AccountKind:
    """What makes the dearer side dearer, as far as the kernels' names and layouts tell."""
    is_another_layout = _are_of_one_shape_in_other_formats(layouts)
    if any(map(_is_call, dear)):
        falls_back = [any(is_fallback(piece.kernel) for piece in side) for side in (dear, cheap)]
        if falls_back == [True, False] and cheap:
            return "implementation"  # whichever layout it has: no library took it
        if is_another_layout:
            return "layout"
        codes = [
            {piece.kernel.implementation for piece in side if piece.kernel.implementation} for side in (dear, cheap)
        ]
        return "implementation" if cheap and codes[0] != codes[1] else "operation"
    if not cheap:  # what stands at no line of the model is fused nowhere
        return "missing_fusion" if any(piece.locations or piece.module for piece in dear) else "operation"
    in_cheap = any(piece.is_generated for piece in cheap)
    if any(piece.is_generated for piece in dear):
        return "layout" if in_cheap and is_another_layout else "generated_kernel"
    return "missing_fusion" if in_cheap else "layout" if is_another_layout else "operation"


def _are_of_one_shape_in_other_formats(layouts: Sequence[Layout | None]) -> bool:
    """Whether both sides are known and of one tensor; what is fused into a kernel may write others, of other shapes."""
    formats = [set(layout.memory_formats) for layout in layouts if layout is not None]
    is_one_shape = None not in layouts and len({layout.shape for layout in layouts if layout is not None}) == 1
    return is_one_shape and all(formats) and not set.intersection(*formats)


def _kernel_names(pieces: Sequence[_Piece]) -> tuple[str, ...]:
    """The dearest first; of what a call does besides for next to nothing (``aten::_nnpack_available``), none."""
    least = _LEAST_SHARE_OF_A_CALL * sum(piece.seconds for piece in pieces)
    telling = [piece for piece in pieces if piece.is_generated or piece.seconds >= least]
    kernels = [piece.kernel for piece in sorted(telling, key=lambda piece: -piece.seconds)]
    return _names(one.name if one.implementation is None else f"{one.name} {one.implementation}" for one in kernels)


def _names(kernels: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(distinct(kernels))


def _told(rows: Iterable[AccountRow], difference: float) -> list[AccountRow]:
    """The rows in the order of what they contribute; the small ones as one."""
    ordered = sorted(rows, key=_place)
    count = sum(_weight(row) > _SMALL_SHARE * abs(difference) for row in ordered[:_MOST_ROWS])
    small = [row for row in ordered[count:] if _weight(row)]
    return [*ordered[:count], *([_sum_row("small", small)] if small else [])]


def _place(row: AccountRow) -> tuple[float, str, tuple[str, ...]]:
    return -_weight(row), row.kind, row.operations


def _weight(row: AccountRow) -> float:
    """Seconds that decide whether a row is shown: what it contributes, or how much could not be aligned."""
    if row.kind == "not_aligned":
        return max(row.slower_seconds or 0.0, row.faster_seconds or 0.0)
    return abs(row.seconds)


def _in_groups(rows: Iterable[AccountRow]) -> list[list[AccountRow]]:
    """Rows together that are in every layer: what one side alone has not fused, and calls that run other code."""
    groups: dict[Hashable, list[AccountRow]] = defaultdict(list)
    for number, row in enumerate(rows):
        alike: Hashable = number
        if row.kind == "missing_fusion":
            alike = row.kind, frozenset(row.operations), row.backward
        elif row.kind == "implementation":
            kernels = (_computing(row.slower_kernels), _computing(row.faster_kernels))
            alike = row.kind, row.operations, row.backward, row.seconds > 0, kernels
        groups[alike].append(row)
    return list(groups.values())


def _computing(kernels: Iterable[str]) -> tuple[str, ...]:
    """The kernels that are no conversions."""
    return tuple(name for name in kernels if not name.startswith("reorder"))


def _as_one(rows: Sequence[AccountRow]) -> AccountRow:
    """Rows that are alike as the one that contributes most, with the sums and places of all."""
    dearest = max(rows, key=lambda row: abs(row.seconds))
    if len(rows) == 1:
        return dearest
    return msgspec.structs.replace(
        dearest,
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        locations=tuple(sorted({place for row in rows for place in row.locations}, key=_in_file)),
        slower_kernels=tuple(distinct(name for row in rows for name in row.slower_kernels)),
        faster_kernels=tuple(distinct(name for row in rows for name in row.faster_kernels)),
        tensor_bytes=known_sum(*(row.tensor_bytes for row in rows)),
        count=len(rows),
        source=None,
    )


def _in_file(place: SourceLocation) -> tuple[str, int]:
    """By file, then line."""
    return place.file, place.line


def _sum_row(kind: AccountKind, rows: Sequence[AccountRow]) -> AccountRow:
    """Several rows that have nothing in common as one."""
    return AccountRow(
        kind=kind,
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        detail=count_of(sum(row.count for row in rows), "row") if kind == "small" else None,
        operations=() if kind == "small" else tuple(distinct(name for row in rows for name in row.operations)),
    )
