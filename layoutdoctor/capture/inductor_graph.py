"""
Reads Inductor's scheduled graph: buffers with their layouts, the kernels that write them, and the strides of each read.

Source: ``Scheduler.nodes``, ``SchedulerNode._body`` (``LoopBody``), ``MemoryUsageType``; torch 2.7, 2.11, 2.13, 2.15.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from layoutdoctor.capture.fx_graph import size_of
from layoutdoctor.diagnosis import Buffer, BufferRead, Layout
from layoutdoctor.diagnosis.layout import known_numbers, strided_layout
from layoutdoctor.errors import first_line
from layoutdoctor.recording.generated_code import Loop, seen_strides

T = TypeVar("T")

_MOVING_OPERATIONS = frozenset({"get_index", "load", "store", "placeholder", "output"})
"""Operations of a loop body that compute nothing. A cast is not in the set, because it computes."""


def buffers_of(graph: Any, kernels: Sequence[tuple[str, list[str], str]]) -> tuple[Buffer, ...]:
    """
    Returns every buffer of a lowered graph, in scheduled order.

    Args:
        graph: A ``GraphLowering`` after code generation.
        kernels: One triple per generated kernel: its name, the names of its scheduler nodes, its source.
    """
    facts = _GraphFacts(
        launch_of={node: (index, name) for index, (name, nodes, _) in enumerate(kernels) for node in nodes},
        removed=frozenset(graph.removed_buffers) | frozenset(graph.inplaced_to_remove),
        returned=tuple(_output_buffers(graph)),
        visible=_user_visible(graph),
    )
    found: list[Buffer] = []
    for outer in graph.scheduler.nodes:
        for node in outer.get_nodes():
            if getattr(node, "node", None) is not None:
                found += _buffers_of_node(node, facts, graph)
    constants = _renamed_constants(graph)
    return tuple(_with_names(buffer, constants) for buffer in found) if constants else tuple(found)


def _renamed_constants(graph: Any) -> dict[str, str]:
    """
    Maps the name of a constant in generated code to the name of its FX node, if the two names differ.

    Source:
        ``GraphLowering.allocate_non_dup_const_name``: ``constant_0_weight`` for ``0.weight``, torch 2.13.
    """
    node_of = {node.target: str(node.name) for node in graph.orig_gm.graph.nodes if node.op == "get_attr"}
    allocated = graph.allocated_constant_name.items()
    return {name: node_of[own] for name, own in allocated if node_of.get(own, name) != name}


def _with_names(buffer: Buffer, names: Mapping[str, str]) -> Buffer:
    accesses = (msgspec.structs.replace(read, name=names.get(read.name, read.name)) for read in buffer.accesses)
    return msgspec.structs.replace(
        buffer,
        reads=tuple(sorted(names.get(name, name) for name in buffer.reads)),
        accesses=tuple(accesses),
    )


@dataclass(frozen=True)
class _GraphFacts:
    """
    Facts about a whole graph.

    Attributes:
        launch_of: Launch of each scheduler node: its number within the graph, and the name of the kernel.
        removed: Buffers that are never written to memory.
        returned: The buffer of each output, in order; None for an output that is no buffer.
        visible: Positions of the outputs that the caller of the model sees; None if not known.
    """

    launch_of: dict[str, tuple[int, str]]
    removed: frozenset[str]
    returned: tuple[str | None, ...]
    visible: frozenset[int] | None

    def is_user_output(self, name: str) -> bool | None:
        """Whether the caller of the model sees a buffer; None if not known."""
        if self.visible is None:
            return None
        return any(name == other and index in self.visible for index, other in enumerate(self.returned))


def _output_buffers(graph: Any) -> Iterator[str | None]:
    """
    Yields the name of each output's buffer, also if the output is a view of it; None for an output without a buffer.

    Source:
        ``GraphLowering.graph_outputs``: ``TensorBox``, ``StorageBox``, ``ReinterpretView``; torch 2.7 to 2.15.
    """
    for output in graph.graph_outputs:
        try:
            yield str(output.get_name())
        except Exception:  # a constant, or nothing
            yield None


def _user_visible(graph: Any) -> frozenset[int] | None:
    """
    Returns the positions of the outputs that the caller of the model sees; None if torch did not record them.

    Source:
        ``meta["user_visible_output_idxs"]`` of the output node, which ``compile_fx`` writes; torch 2.7 to 2.15.
    """
    indices = graph.orig_gm.graph.output_node().meta.get("user_visible_output_idxs")
    return None if indices is None else frozenset(int(index) for index in indices)


def _buffers_of_node(node: Any, facts: _GraphFacts, graph: Any) -> list[Buffer]:
    is_extern = bool(node.is_extern())
    origins = tuple(str(origin.name) for origin in node.node.origins)
    reads = tuple(sorted({dependency.name for dependency in node.read_writes.reads}))
    launch, kernel = facts.launch_of.get(node.get_name(), (None, None))
    found: list[Buffer] = []
    for output in node.get_outputs():
        name, inner = str(output.get_name()), output.node
        # The result of an in-place library call has no layout of its own: the layout of the changed tensor counts.
        changed = [graph.try_get_buffer(other) for other in output.get_mutations()] if is_extern else []
        inner = next((other for other in changed if other is not None), inner)
        layout = ir_layout(inner)
        body = _read_body(node, name, layout)
        aliases = [str(other) for other in output.get_aliases()]
        found.append(
            Buffer(
                name=name,
                layout=layout,
                dtype=_asked(inner, lambda inner: str(inner.get_dtype()).removeprefix("torch."), None),
                kernel=_extern_name(node) if is_extern else kernel,
                origins=origins,
                reads=reads,
                is_extern=is_extern,
                source_node=_source_node(node, origins),
                accesses=body.accesses,
                operations=body.operations,
                is_reduction=not is_extern and bool(node.is_reduction()),
                is_removed=name in facts.removed,
                # A write into a tensor of the caller is as visible as a returned tensor.
                is_output=name in facts.returned or bool(output.get_mutations()),
                is_user_output=facts.is_user_output(name),
                alias_of=aliases[0] if aliases and not is_extern else None,
                offset=_asked(inner, lambda inner: int(inner.get_layout().offset), 0),
                launch=launch,
                problem=body.problem,
            )
        )
    # After a change in place, a loop body still has the old name of the buffer, and the scheduler has the new name.
    renamed = getattr(node, "mutation_renames", None)
    return [_with_names(buffer, renamed) for buffer in found] if renamed else found


def _source_node(node: Any, origins: Sequence[str]) -> str | None:
    """
    Returns the name of the FX node whose value a scheduler node computes; None if there is no such node.

    A oneDNN call that freezing made has one origin, which is the right node. ``get_origin_node`` would be wrong: it
    returns a node that writes into the result later (an addition that the next convolution fused). If the call itself
    writes in place, it returns nothing.
    """
    call = node.node.inputs[0] if type(node.node).__name__ == "MultiOutput" else node.node
    if len(origins) == 1 and str(getattr(call, "python_kernel_name", None)).startswith("torch.ops.mkldnn."):
        return origins[0]
    return _asked(node.node, lambda inner: str(inner.get_origin_node().name), None)


def _asked(inner: Any, ask: Callable[[Any], T], default: T) -> T:
    """Calls ``ask`` with an IR node; returns the default if the node's class raises."""
    with contextlib.suppress(Exception):
        return ask(inner)
    return default


def _extern_name(node: Any) -> str:
    inner = node.node
    for attribute in ("python_kernel_name", "op_overload"):
        name = getattr(inner, attribute, None)
        if name:
            return str(name)
    return type(inner).__name__


def ir_layout(inner: Any) -> Layout | None:
    """Returns an Inductor buffer's layout; None for classes without sizes and strides, like ``MultiOutputLayout``."""
    try:
        layout = inner.get_layout()
    except Exception:  # some classes raise, some have only the attribute
        layout = getattr(inner, "layout", None)
    # If a view is changed in place, the layout has the strides of the whole tensor; ``target`` has the view's strides.
    changed = getattr(layout, "target", None)
    try:
        sizes, strides = (layout.size, layout.stride) if changed is None else (changed.get_size(), changed.get_stride())
        sizes, strides = list(sizes), list(strides)
    except Exception:  # no such attributes, no sequences, or a class that raises
        return None
    if len(sizes) != len(strides):
        return None
    return strided_layout([size_of(size) for size in sizes], [size_of(step) for step in strides])


@dataclass(frozen=True)
class _Body:
    """The reads and operations of a loop body that were understood, and the problem if some were not."""

    accesses: tuple[BufferRead, ...] = ()
    operations: tuple[str, ...] = ()
    problem: str | None = None


def _read_body(node: Any, name: str, layout: Layout | None) -> _Body:
    """Reads the loop that writes a buffer; if it is not understood, ``problem`` says why, and nothing is guessed."""
    body = getattr(node, "_body", None)
    if body is None:
        return _Body()
    try:
        operations = _operations(body)
        if layout is None:
            return _Body((), operations, "written in place through a view")
        known = known_numbers(layout)
        if known is None or any(isinstance(size_of(size), str) for size in body.var_ranges.values()):
            return _Body((), operations, "symbolic sizes")
        return _Body(_buffer_reads(body, name, *known), operations)
    except Exception as error:  # the buffer of an unreadable body counts as "not understood"
        return _Body(problem=f"loop body not read ({first_line(error)})")


def _operations(body: Any) -> tuple[str, ...]:
    """Lists the operations of a loop body except loads and stores, each once. A cast is listed: it computes."""
    blocks = [body.root_block, *body.subblocks.values()]
    targets = [
        node.target for block in blocks for node in block.graph.nodes if node.op in ("call_method", "call_module")
    ]
    return tuple(dict.fromkeys(str(target) for target in targets if target not in _MOVING_OPERATIONS))


def _buffer_reads(body: Any, stored: str, shape: Sequence[int], stride: Sequence[int]) -> tuple[BufferRead, ...]:
    from torch._inductor.loop_body import MemoryUsageType  # a slow import, needed only with a graph

    counts = {variable: int(size) for variable, size in body.var_ranges.items() if size != 1}
    stores = [
        entry
        for kind in (MemoryUsageType.STORE, MemoryUsageType.STORE_REDUCTION)
        for entry in body.memory_usage[kind]
        if entry.buffer_name == stored
    ]
    if len(stores) != 1 or stores[0].mode is not None:  # several stores, or atomic additions
        loaded = dict.fromkeys(entry.buffer_name for entry in body.memory_usage[MemoryUsageType.LOAD])
        return tuple(BufferRead(name=name, stride=None) for name in loaded)
    ones = {variable for variable in body.var_ranges if variable not in counts}
    store = _steps(body.indexing_exprs[stores[0].index_name], counts, ones)
    # Masked parts of a loop body have blocks of their own.
    outer = [node for node in body.root_block.graph.nodes if node.target == "get_index" and node.args]
    unmasked = {str(node.args[-1]) for node in outer}
    reads: dict[BufferRead, None] = {}
    for entry in body.memory_usage[MemoryUsageType.LOAD]:
        load = _steps(body.indexing_exprs[entry.index_name], counts, ones)
        seen = None
        if store is not None and load is not None:
            loops = [Loop(count, store[0].get(name, 0), load[0].get(name, 0)) for name, count in counts.items()]
            seen = seen_strides(shape, stride, loops)
        masked = entry.index_name not in unmasked
        offset = load[1] if load is not None else 0
        reads[BufferRead(name=entry.buffer_name, stride=seen, offset=offset, is_masked=masked)] = None
    return tuple(reads)


def _steps(index: Any, counts: dict[Any, int], ones: set[Any]) -> tuple[dict[Any, int], int] | None:
    """Returns an index's integer step for each loop variable, and its constant; None if an index has another form."""
    steps: dict[Any, int] = {}
    constant = 0
    for term, factor in index.as_coefficients_dict().items():
        if not factor.is_Integer:
            return None
        if term == 1:
            constant = int(factor)
        elif term in counts:
            steps[term] = int(factor)
        elif term not in ones:  # a variable that takes one value is always 0
            return None
    return steps, constant


_VARYING = (
    (re.compile(r"^\s*#.*$", re.MULTILINE), ""),
    (re.compile(r"\bgraph_\d+_"), "graph_"),
    (re.compile(r"/[^\s'\"]+\.(?:py|cpp|h|so)"), "PATH"),
    (re.compile(r"^(\w+ = None  #|// \w+)( .*\)) [0-9a-f]+$", re.MULTILINE), r"\1\2"),
)
"""
Replacements for text that differs between two compiles of the same code: compile ids, comments, paths of generated
files, addresses of constants. The dtype, sizes and strides of a constant stay: for a frozen weight, no other line of
the code has them.
"""


_KERNEL = re.compile(r"^(\w+) = async_compile\.\w+\(.*?'''\n?(.*?)'''", re.MULTILINE | re.DOTALL)

_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


def kernel_sources(source: str) -> dict[str, str]:
    """
    Finds the sources of the kernels in a graph's generated code, by kernel name, without ``#include`` lines.

    Source:
        ``PythonWrapperCodegen.define_kernel``: ``name = async_compile.cpp_pybinding(..., r'''...''')``, on a GPU
        ``async_compile.triton('name', '''...''', ...)``; torch 2.7 to 2.15.
    """
    return {match[1]: _INCLUDE.sub("", match[2]).strip() for match in _KERNEL.finditer(source)}


def code_fingerprint(source: str) -> str:
    """Hashes generated code; two compiles of the same code have equal hashes."""
    for pattern, replacement in _VARYING:
        source = pattern.sub(replacement, source)
    return hashlib.sha256(source.encode()).hexdigest()
