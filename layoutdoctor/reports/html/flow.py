"""
The layout flows of the HTML report, placed: each box in a row below all that it reads from.

Faces ``html``; what is drawn is decided in ``flow``, for all formats that draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.wording import clean
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.flow.flows import Flow, FlowNode

MOST_FLOWS = 3


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """
    One box of a flow, where it stands.

    Attributes:
        row: From the top, from 0.
        column: From the left, from 0; boxes of one row stand centred.
        label: What it is.
        detail: What else is known; empty where nothing is.
        time: Its time as text; empty where not known.
        kind: What kind of box.
        memory_format: Of the value that it makes.
        is_redundant: Whether it is a conversion of a redundant pair.
    """

    row: int
    column: int
    label: str
    detail: str
    time: str
    kind: str
    memory_format: str
    is_redundant: bool


@dataclass(frozen=True, slots=True)
class PlacedFlow:
    """
    One flow, ready to be drawn.

    Attributes:
        title: What it shows.
        configuration: The trial it was recorded in.
        about: What is to be seen, in a sentence.
        boxes: In the order in which the value passes them.
        edges: Index of the box that makes a value, of the one that reads it, and its layout.
        row_widths: Boxes in each row.
        steps: The same in words, one line per box.
        left_out: Steps next to those drawn that are not drawn.
    """

    title: str
    configuration: str
    about: str
    boxes: tuple[PlacedBox, ...]
    edges: tuple[tuple[int, int, str], ...]
    row_widths: tuple[int, ...]
    steps: tuple[str, ...]
    left_out: int


def build_placed_flows(diagnosis: Diagnosis) -> tuple[PlacedFlow, ...]:
    """
    The flows around the worst that was found, worst first.

    Args:
        diagnosis: Any diagnosis.
    """
    from layoutdoctor.reports.flow.flows import build_flows  # late: needed for pages with a graph only

    return tuple(_place(flow) for flow in build_flows(diagnosis, most=MOST_FLOWS) if flow.nodes)


def _place(flow: Flow) -> PlacedFlow:
    number = {node.key: place for place, node in enumerate(flow.nodes)}
    edges = tuple(
        (number[edge.source], number[edge.target], clean(edge.label))
        for edge in flow.edges
        if edge.source in number and edge.target in number
    )
    rows = _rows(len(flow.nodes), [(source, target) for source, target, _ in edges])
    taken: dict[int, int] = {}
    columns = []
    for row in rows:
        columns.append(taken.get(row, 0))
        taken[row] = columns[-1] + 1
    boxes = tuple(_box(node, row, column) for node, row, column in zip(flow.nodes, rows, columns, strict=True))
    return PlacedFlow(
        title=clean(flow.title),
        configuration=clean(flow.configuration),
        about=clean(flow.about),
        boxes=boxes,
        edges=edges,
        row_widths=tuple(taken[row] for row in sorted(taken)),
        steps=tuple(_step(place, box, boxes, edges) for place, box in enumerate(boxes)),
        left_out=flow.left_out,
    )


def _rows(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The longest way from the top to each box; an edge that leads back to an earlier box moves nothing."""
    rows = [0] * count
    for source, target in sorted((source, target) for source, target in edges if source < target):
        rows[target] = max(rows[target], rows[source] + 1)
    return rows


def _box(node: FlowNode, row: int, column: int) -> PlacedBox:
    return PlacedBox(
        row=row,
        column=column,
        label=clean(node.label, 120),
        detail=clean(node.detail, 160) if node.detail else "",
        time="" if node.seconds is None else format_seconds(node.seconds),
        kind=node.kind,
        memory_format=node.memory_format,
        is_redundant=node.is_redundant,
    )


def _step(place: int, box: PlacedBox, boxes: Sequence[PlacedBox], edges: Iterable[tuple[int, int, str]]) -> str:
    reads = [
        boxes[source].label + (f" ({label})" if label else "") for source, target, label in edges if target == place
    ]
    parts = [
        box.label,
        *([box.detail] if box.detail else []),
        *([box.time] if box.time else []),
        *(["part of a round trip"] if box.is_redundant else []),
        *([f"reads {', '.join(reads)}"] if reads else []),
    ]
    return " · ".join(parts)
