"""
Inductor's scheduled graph as records: buffers with their layouts, the kernels that write them, and what is only moved.

A buffer is called moved by what its loop body does (loads, stores and nothing else), never by the kernel's name.
Reads Inductor's own objects after code generation; every access is guarded, since layouts differ by node class.

Source: ``Scheduler.nodes``, ``SchedulerNode._body`` (``LoopBody``), ``MemoryUsageType``; torch 2.7, 2.11, 2.13, 2.15.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutdoctor.capture.fx_graph import size_of
from layoutdoctor.layout import Layout, strided_layout
from layoutdoctor.records import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOVING_OPERATIONS = frozenset({"get_index", "load", "store", "placeholder", "output"})
"""Operations of a loop body that compute nothing; a cast computes, so it is not among them."""


def buffers_of(graph: Any, kernels: Sequence[tuple[str, list[str], str]]) -> tuple[Buffer, ...]:
    """
    Every buffer of a lowered graph in scheduled order.

    Args:
        graph: A ``GraphLowering`` after code generation.
        kernels: (generated kernel name, names of the scheduler nodes in it, source).
    """
    kernel_of = {node: name for name, nodes, _ in kernels for node in nodes}
    found: list[Buffer] = []
    for outer in graph.scheduler.nodes:
        for node in outer.get_nodes():
            if getattr(node, "node", None) is not None:
                found += _buffers_of_node(node, kernel_of)
    return tuple(found)


def _buffers_of_node(node: Any, kernel_of: dict[str, str]) -> list[Buffer]:
    accesses = _accesses(node)
    origins = tuple(origin.name for origin in getattr(node.node, "origins", None) or ())
    return [
        Buffer(
            name=output.get_name(),
            layout=ir_layout(output.node),
            dtype=_dtype(output.node),
            kernel=_extern_name(node) if node.is_extern() else kernel_of.get(node.get_name()),
            origins=origins,
            reads=tuple(sorted({dependency.name for dependency in node.read_writes.reads})),
            is_extern=bool(node.is_extern()),
            source_node=_origin_node(node.node),
            moved_from=tuple(accesses.moved(output.get_name())),
            converted_from=tuple(accesses.converted(output.get_name())),
        )
        for output in node.get_outputs()
    ]


def _extern_name(node: Any) -> str:
    inner = node.node
    for attribute in ("python_kernel_name", "op_overload"):
        name = getattr(inner, attribute, None)
        if name:
            return str(name)
    return type(inner).__name__


def _origin_node(inner: Any) -> str | None:
    with contextlib.suppress(Exception):  # not every IR class has one
        origin = inner.get_origin_node()
        return None if origin is None else str(origin.name)
    return None


def ir_layout(inner: Any) -> Layout | None:
    """
    Layout of an Inductor IR node.

    Args:
        inner: A buffer; classes without sizes and strides (``MultiOutputLayout``, ``NoneLayout``) have none.
    """
    try:
        layout = inner.get_layout()
    except Exception:  # some classes raise, some have the attribute only
        layout = getattr(inner, "layout", None)
    if not hasattr(layout, "stride") or not hasattr(layout, "size"):
        return None
    return strided_layout([size_of(size) for size in layout.size], [size_of(step) for step in layout.stride])


def _dtype(inner: Any) -> str | None:
    with contextlib.suppress(Exception):
        return str(inner.get_dtype()).removeprefix("torch.")
    return None


@dataclass
class _Accesses:
    """
    Strides with which one loop body reads and writes, by loop variable.

    Attributes:
        loads: (buffer, strides) of every read; strides None where the index is not affine.
        stores: The same for every write.
        only_moves: Whether the body does nothing but load and store.
    """

    loads: list[tuple[str, list[int] | None]] = field(default_factory=list)
    stores: list[tuple[str, list[int] | None]] = field(default_factory=list)
    only_moves: bool = False

    def moved(self, buffer: str) -> list[str]:
        """Buffers whose values this one holds in another stride order, nothing computed."""
        return self._reordered(buffer) if self.only_moves and len(self.loads) == 1 else []

    def converted(self, buffer: str) -> list[str]:
        """Buffers read in one stride order and written in another by a body that computes as well."""
        return [] if self.moved(buffer) else self._reordered(buffer)

    def _reordered(self, buffer: str) -> list[str]:
        names: list[str] = []
        for stored, target in self.stores:
            if stored != buffer:
                continue
            for loaded, source in self.loads:
                if _is_reordered(source, target) and loaded not in names:
                    names.append(loaded)
        return names


def _is_reordered(source: list[int] | None, target: list[int] | None) -> bool:
    """
    Whether a body that walks both layouts reads and writes in different stride orders.

    A zero stride is a broadcast or a reduction, whose order says nothing; two variables of one buffer that were merged
    by simplification have one stride, so what remains is what really differs.
    """
    if not source or not target or len(target) < 2 or 0 in source or 0 in target:
        return False
    return _ranks(source) != _ranks(target)


def _ranks(strides: list[int]) -> list[int]:
    ordered = sorted(strides)
    return [ordered.index(step) for step in strides]


def _accesses(node: Any) -> _Accesses:
    body = getattr(node, "_body", None)
    if body is None:
        return _Accesses()
    try:
        return _body_accesses(body, is_reduction=bool(node.is_reduction()))
    except Exception:  # a body we cannot read is "not understood", its buffers claim nothing
        return _Accesses()


def _body_accesses(body: Any, *, is_reduction: bool) -> _Accesses:
    from torch._inductor.loop_body import MemoryUsageType  # only with a graph at hand

    variables = [variable for variable, size in body.var_ranges.items() if size != 1]

    def gather(*kinds: str) -> list[tuple[str, list[int] | None]]:
        return [
            (entry.buffer_name, _strides(body.indexing_exprs[entry.index_name], variables))
            for kind in kinds
            if hasattr(MemoryUsageType, kind)
            for entry in body.memory_usage[getattr(MemoryUsageType, kind)]
        ]

    called = {node.target for node in body.root_block.graph.nodes if node.op in ("call_method", "call_module")}
    moves = all(isinstance(target, str) and target in _MOVING_OPERATIONS for target in called)
    return _Accesses(gather("LOAD"), gather("STORE", "STORE_REDUCTION"), moves and not is_reduction)


def _strides(index: Any, variables: Sequence[Any]) -> list[int] | None:
    """Step of an index expression by each loop variable; None where it is not affine with integer steps."""
    import sympy  # comes with torch

    if index.atoms(sympy.Function):
        return None
    steps: list[int] = []
    for variable in variables:
        step = sympy.diff(index, variable)
        if not step.is_Integer:
            return None
        steps.append(int(step))
    return steps


_VARYING = (
    (re.compile(r"^# AOT ID: .*$", re.MULTILINE), ""),
    (re.compile(r"^# Topologically Sorted Source Nodes:.*$|^\s*#.*$", re.MULTILINE), ""),
    (re.compile(r"\bgraph_\d+_"), "graph_"),
    (re.compile(r"/[^\s'\"]+\.(?:py|cpp|h|so)"), "PATH"),
)
"""What differs between two compiles of the same code: compile ids, comments, paths of generated files."""


def code_fingerprint(sources: Iterable[str]) -> str:
    """
    A hash that is equal for equal generated code.

    Args:
        sources: The generated wrapper, its kernels included.
    """
    digest = hashlib.sha256()
    for source in sources:
        text = source
        for pattern, replacement in _VARYING:
            text = pattern.sub(replacement, text)
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()
