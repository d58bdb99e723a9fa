"""Finds the inputs of a graph that are weights, also behind casts and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from layoutdoctor.diagnosis import FxNode, GraphDirection, TensorKind
from layoutdoctor.diagnosis.graph import base_name

SAME = frozenset(
    "_to_copy convert_element_type clone alias detach view _unsafe_view reshape unsqueeze squeeze permute transpose t "
    "expand slice select".split()
)
"""Views, casts and copies: operations whose result has only elements of their first argument."""

_SAME_WEIGHT = frozenset("_to_copy convert_element_type clone alias detach view reshape unsqueeze squeeze".split())

_COMPUTED_WEIGHT = frozenset("mul div sub add dequantize_per_tensor dequantize_per_channel".split())
"""Operations that scale or dequantise a weight; the weight is the argument with the same shape as the result."""


def behind(name: str, nodes: Mapping[str, FxNode], through: frozenset[str]) -> str:
    """Goes back from a node over first arguments while the operation is in ``through``; returns the node reached."""
    node = nodes.get(name)
    while node is not None and node.op == "call_function" and base_name(node.target) in through and node.inputs:
        name = node.inputs[0]
        node = nodes.get(name)
    return name


def weight_of(node: FxNode, nodes: Mapping[str, FxNode]) -> str | None:
    """Returns the graph input that is a convolution's weight; None if there is no such input, or no convolution."""
    position = 2 if "convolution_backward" in node.target else 1
    if node.op != "call_function" or "convolution" not in node.target or len(node.inputs) <= position:
        return None
    weight = behind(node.inputs[position], nodes, _SAME_WEIGHT)
    while (made := nodes.get(weight)) is not None and base_name(made.target) in _COMPUTED_WEIGHT:
        alike = [name for name in made.inputs if name in nodes and _shape(nodes[name]) == _shape(made) is not None]
        if len(alike) != 1:
            break
        weight = behind(alike[0], nodes, _SAME_WEIGHT)
    return weight if weight in nodes and nodes[weight].op in ("placeholder", "get_attr") else None


def is_computed_weight(node: FxNode, nodes: Mapping[str, FxNode]) -> bool:
    """Whether the graph computes a convolution's weight from several inputs, such as one weight per sample."""
    position = 2 if "convolution_backward" in node.target else 1
    if len(node.inputs) <= position or weight_of(node, nodes) is not None:
        return False
    front, seen = [node.inputs[position]], set[str]()
    while front:
        name = front.pop()
        if name in nodes and name not in seen:
            seen.add(name)
            front += nodes[name].inputs
    return sum(nodes[name].op in ("placeholder", "get_attr") for name in seen) > 1


def _shape(node: FxNode) -> tuple[int | str, ...] | None:
    return None if node.layout is None else node.layout.shape


def placeholder_kinds(nodes: Iterable[FxNode], direction: GraphDirection) -> dict[str, TensorKind]:
    """
    Returns the kind of each graph input: the weight of a convolution, a gradient, or an activation.

    Args:
        direction: Direction of the graph. Inputs of a backward graph with ``tangents`` in their names are gradients.
    """
    by_name = {node.name: node for node in nodes}
    inputs = [name for name, node in by_name.items() if node.op in ("placeholder", "get_attr")]
    kinds: dict[str, TensorKind] = dict.fromkeys(inputs, "activation")
    if direction == "backward":
        kinds |= {name: "gradient" for name in inputs if "tangents" in name}
    return kinds | {name: "weight" for node in by_name.values() if (name := weight_of(node, by_name)) is not None}
