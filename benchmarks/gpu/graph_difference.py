"""
Two lowerings of one model, compared node by node: decisions, FX nodes, buffers, conversions, names of kernels.

Pure functions of graph records; needs no torch and no device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Buffer, Conversion, Decision, FxNode, Graph

COUNTED = ("graphs", "decisions", "nodes", "buffers", "conversions", "kernel_names")


@dataclass
class Difference:
    """
    What two lowerings share and where they differ.

    Attributes:
        compared: How many of each kind were compared.
        differing: How many of each kind differ.
        listed: Every difference: where, what, and both sides.
        not_compared: What could not be compared, in words.
    """

    compared: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    listed: list[dict[str, Any]] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)

    @property
    def is_none(self) -> bool:
        """Whether everything that was compared is the same."""
        return not self.listed

    def add(self, kind: str, where: str, what: str, static: Any, real: Any) -> None:
        """
        Lists a difference.

        Args:
            kind: One of ``COUNTED``.
            where: Graph and name.
            what: Which fact.
            static: As lowered for the target.
            real: As lowered on the device.
        """
        self.listed.append({"kind": kind, "where": where, "what": what, "static": static, "real": real})


def compare_lowerings(static: Sequence[Graph], real: Sequence[Graph]) -> Difference:
    """
    Compares all graphs of a model, matched by direction and order.

    Args:
        static: As lowered for a target.
        real: As lowered on the device.
    """
    found = Difference()
    sides = {name: _by_direction(graphs) for name, graphs in (("static", static), ("real", real))}
    for direction in ("inference", "forward", "backward"):
        ours, theirs = sides["static"].get(direction, []), sides["real"].get(direction, [])
        found.compared["graphs"] += max(len(ours), len(theirs))
        if len(ours) != len(theirs):
            found.differing["graphs"] += abs(len(ours) - len(theirs))
            found.add("graphs", direction, "number of graphs", len(ours), len(theirs))
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            _compare_graphs(f"{direction} {number}", one, other, found)
    return found


def _by_direction(graphs: Iterable[Graph]) -> dict[str, list[Graph]]:
    found: dict[str, list[Graph]] = {}
    for graph in graphs:
        found.setdefault(graph.direction, []).append(graph)
    return found


def _compare_graphs(where: str, static: Graph, real: Graph, found: Difference) -> None:
    for side, graph in (("static", static), ("real", real)):
        if graph.hook_failure is not None:
            found.not_compared.append(f"{where}: {side} side was not recorded in full: {graph.hook_failure}")
    _compare_facts("decisions", where, _decision(static.decision), _decision(real.decision), found)
    _compare_facts("nodes", where, _nodes(static.nodes), _nodes(real.nodes), found)
    has_names = bool(static.kernel_names) and bool(real.kernel_names)
    _compare_facts(
        "buffers",
        where,
        _buffers(static.buffers, has_names=has_names),
        _buffers(real.buffers, has_names=has_names),
        found,
    )
    _compare_facts(
        "conversions",
        where,
        _conversions(static.conversions, has_names=has_names),
        _conversions(real.conversions, has_names=has_names),
        found,
    )
    if has_names:
        names = ({name: {"is there": True} for name in graph.kernel_names} for graph in (static, real))
        _compare_facts("kernel_names", where, *names, found)
    elif static.kernel_names or real.kernel_names:
        side = "real" if static.kernel_names else "static"
        found.not_compared.append(f"{where}: names of kernels: the {side} side has none")


Facts = dict[str, dict[str, Any]]


def _compare_facts(kind: str, where: str, static: Facts, real: Facts, found: Difference) -> None:
    """Compares things by their names, fact by fact; what only one side has is one difference."""
    for name in {**static, **real}:
        found.compared[kind] += 1
        ours, theirs = static.get(name), real.get(name)
        if ours == theirs:
            continue
        found.differing[kind] += 1
        if ours is None or theirs is None:
            found.add(kind, f"{where}: {name}", "only on one side", ours, theirs)
            continue
        for what in ours:
            if ours[what] != theirs[what]:
                found.add(kind, f"{where}: {name}", what, ours[what], theirs[what])


def _decision(decision: Decision | None) -> Facts:
    if decision is None:
        return {}
    facts: Facts = {
        "layout optimization": {
            "applied": decision.applied,
            "rule": decision.rule,
            "explanation": decision.explanation,
            "convolutions": decision.convolution_count,
            "channels_last convolutions": decision.channels_last_convolution_count,
        }
    }
    for convolution in decision.convolutions:
        facts[convolution.node] = {"class": convolution.class_, "channels_last": convolution.channels_last}
    return facts


def _nodes(nodes: Iterable[FxNode]) -> Facts:
    return {
        node.name: {
            "operation": node.target if node.op == "call_function" else node.op,
            "inputs": list(node.inputs),
            "dtype": node.dtype,
            "layout": layout_facts(node.layout),
        }
        for node in nodes
    }


def _buffers(buffers: Iterable[Buffer], *, has_names: bool) -> Facts:
    return {
        buffer.name: {
            "kernel": buffer.kernel if has_names or buffer.is_extern else None,
            "origins": sorted(buffer.origins),
            "dtype": buffer.dtype,
            "layout": layout_facts(buffer.layout),
            "is written": not buffer.is_removed,
        }
        for buffer in buffers
    }


def _conversions(conversions: Iterable[Conversion], *, has_names: bool) -> Facts:
    facts: Facts = {}
    for conversion in conversions:
        name = f"{conversion.node} {conversion.direction}"
        while name in facts:
            name += " again"
        facts[name] = {
            "owner": conversion.owner,
            "tensor": conversion.tensor,
            "fused": conversion.fused,
            "source": layout_facts(conversion.source),
            "target": layout_facts(conversion.target),
            "kernel": conversion.kernel if has_names else None,
        }
    return facts


def layout_facts(layout: Layout | None) -> list[Any] | None:
    """
    Shape and strides; a stride along a dimension of one element says nothing and is written as None.

    Args:
        layout: Any.
    """
    if layout is None:
        return None
    if layout.stride is None:
        return [list(layout.shape), None]
    return [list(layout.shape), [None if n == 1 else s for n, s in zip(layout.shape, layout.stride, strict=True)]]


def convolution_formats(graph: Graph) -> list[tuple[str, str]]:
    """
    The memory formats in which the convolutions of a graph leave their results, in scheduled order.

    Args:
        graph: Lowered.
    """
    return [
        (buffer.source_node or next(iter(buffer.origins), buffer.name), format_of(buffer.layout))
        for buffer in graph.buffers
        if buffer.is_extern and "convolution" in (buffer.kernel or "") and buffer.layout is not None
    ]


def format_of(layout: Layout | None) -> str:
    """
    The memory format of a layout in a word: the channels-last one where it satisfies only that.

    Args:
        layout: Any.
    """
    formats = layout.memory_formats if layout is not None else ()
    if "contiguous_format" in formats:
        return "contiguous_format"
    return formats[0] if formats else "neither"


def loses_channels_last(formats: Sequence[tuple[str, str]]) -> bool:
    """
    Whether a graph's first convolution gives channels_last_3d and a later one does not.

    Args:
        formats: From ``convolution_formats``.
    """
    kinds = [kind for _, kind in formats]
    return bool(kinds) and kinds[0] == "channels_last_3d" and any(kind != "channels_last_3d" for kind in kinds[1:])


def summed(differences: Mapping[str, Difference]) -> dict[str, Any]:
    """
    Several comparisons as the fields of a result.

    Args:
        differences: By configuration.
    """
    result: dict[str, Any] = {}
    for kind in COUNTED:
        result[f"{kind}_compared"] = sum(one.compared[kind] for one in differences.values())
        result[f"{kind}_differing"] = sum(one.differing[kind] for one in differences.values())
    result["agreeing_configurations"] = [name for name, one in differences.items() if one.is_none]
    result["differing_configurations"] = [name for name, one in differences.items() if not one.is_none]
    listed = [{"configuration": name, **entry} for name, one in differences.items() for entry in one.listed]
    result["difference_count"] = len(listed)
    result["differences"] = listed
    result["not_compared"] = [f"{name}: {text}" for name, one in differences.items() for text in one.not_compared]
    return result
