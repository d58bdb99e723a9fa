"""Builders that the tests of several rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    a_comparison,
    a_conversion,
    a_graph,
    a_placeholder,
    a_ratio,
    a_trial,
    channels_last,
    contiguous,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.trial import Trial


def with_graph(*nodes: FxNode, name: str = "inductor", graph: Mapping[str, Any] | None = None, **changes: Any) -> Trial:
    """A trial with one graph of these nodes; ``graph`` has the graph's other fields."""
    return a_trial(name, **{"graphs": (a_graph(nodes=nodes, **(graph or {})),), **changes})


def against(name: str, median: float, width: float = 0.03) -> dict[str, Any]:
    """The fields of a diagnosis in which one configuration was compared with the baseline."""
    return {"comparison": a_comparison(a_ratio(name, median, width))}


def a_parameter(name: str, layout: Layout | None = None) -> FxNode:
    """A placeholder of the weight of a convolution."""
    return a_placeholder(name, layout or contiguous((64, 64, 3, 3)), "weight")


def a_compilers_copy(id: str, **changes: Any) -> Conversion:
    """A conversion to channels_last that Inductor wrote into a graph."""
    fields: dict[str, Any] = {"owner": "compiler", "graph": "graph 0", "direction": "to_channels_last"}
    return a_conversion(id, **{**fields, "source": contiguous(), "target": channels_last(), **changes})
