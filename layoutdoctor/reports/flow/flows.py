"""
The layout flow around what costs most: which operations a value passes, in which layouts, and where it is converted.

For formats that draw (Mermaid, HTML), so that both draw the same. Only recorded edges are drawn: Inductor's buffers
where a graph was compiled, the operations where it ran in eager, and what a pair itself names where no graph was
recorded, as in a trace. Faces the formats; a pure function of the diagnosis, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.reports.flow.choice import choose_scenes
from layoutdoctor.reports.flow.parts import FlowEdge, FlowFormat, FlowKind, FlowNode
from layoutdoctor.reports.flow.scene import draw
from layoutdoctor.reports.sections.wording import clean_name

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis

__all__ = ["Flow", "FlowEdge", "FlowFormat", "FlowKind", "FlowNode", "build_flows"]

_RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class Flow:
    """
    The layout flow around one redundant pair or conversion.

    Attributes:
        title: Which finding, pair or conversion it shows.
        configuration: The trial it was recorded in.
        nodes: Boxes, in the order in which a value passes them.
        edges: What was recorded between them.
        left_out: Steps next to those drawn that are not drawn: weights, statistics, further readers.
        about: What is to be seen, in a sentence.
    """

    title: str
    configuration: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    left_out: int
    about: str

    @property
    def heading(self) -> str:
        """The title with the configuration; a recorded trace has none to speak of."""
        return self.title if self.configuration == _RECORDED else f"{self.title} under {self.configuration}"


def build_flows(diagnosis: Diagnosis, most: int = 3) -> tuple[Flow, ...]:
    """
    The flows around the worst that was found.

    Args:
        diagnosis: Any diagnosis.
        most: How many to draw.

    Returns:
        The worst first: by severity, then those of the baseline and of the recommended trial, then by seconds, then by
        bytes; one for all round trips that look alike. Empty where nothing was found, or nothing can be drawn.
    """
    flows: list[Flow] = []
    looks: list[tuple[object, ...]] = []
    for scene in choose_scenes(diagnosis):
        if len(flows) >= most:
            break
        drawing = draw(scene)
        if drawing is None or drawing.look in looks:
            continue
        looks.append(drawing.look)
        flows.append(
            Flow(
                title=scene.title,
                configuration=clean_name(scene.trial.name),
                nodes=drawing.nodes,
                edges=drawing.edges,
                left_out=drawing.left_out,
                about=scene.about,
            )
        )
    return tuple(flows)
