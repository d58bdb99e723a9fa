"""
The boxes and edges of a layout flow, and how conversions and layouts are called in them.

Faces ``flow_graph`` and ``flow``; a pure function of records, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.reports.sections.wording import clean, clean_name, place_of
from layoutdoctor.rules.graph_evidence import is_convolution

if TYPE_CHECKING:
    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion, FxNode, Trial

FlowKind = Literal["input", "output", "operation", "convolution", "conversion"]
FlowFormat = Literal["channels_last", "contiguous", "blocked", "unknown"]

_OWNER_WORDS = {
    "user": "written in the model",
    "compiler": "inserted by the compiler",
    "library": "inserted by the library",
    "framework": "made inside an eager operation",
}


@dataclass(frozen=True, slots=True)
class FlowNode:
    """
    One box of a flow.

    Attributes:
        key: Unique within the flow: ``n0``, ``n1`` and so on.
        label: What it is, in a few words.
        detail: What else is known: a conversion's id and owner, the kernel; None where nothing is.
        kind: What kind of box; an ``input`` is a tensor, the others are steps.
        memory_format: Of the value that it makes; ``unknown`` also where several fit, or no named one does.
        is_redundant: Whether it is a conversion of a redundant pair.
        place: File, line and module; None where not known.
        seconds: Its time per iteration; None where not known.
    """

    key: str
    label: str
    detail: str | None
    kind: FlowKind
    memory_format: FlowFormat
    is_redundant: bool = False
    place: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """
    A value that one box makes and another one reads.

    Attributes:
        source: Key of the box that makes it.
        target: Key of the box that reads it.
        label: Its layout, such as ``2x64x56x56 channels_last``; empty where not known.
    """

    source: str
    target: str
    label: str


def conversion_key(conversion: Conversion) -> str:
    """
    The key of a conversion's box.

    Args:
        conversion: Any.
    """
    return f"conversion {conversion.id}"


def redundant_ids(trial: Trial) -> frozenset[str]:
    """
    Ids of all conversions that belong to a redundant pair.

    Args:
        trial: Any.
    """
    return frozenset(id_ for pair in trial.redundant_pairs for id_ in (pair.first, *pair.also, pair.second))


def conversion_node(conversion: Conversion, *, is_redundant: bool) -> FlowNode:
    """
    The box of a conversion.

    Args:
        conversion: Any.
        is_redundant: Whether it belongs to a redundant pair.
    """
    before, after = format_words(conversion.source), format_words(conversion.target)
    if before and after and before != after:
        change = f"{before} to {after}"
    else:
        change = conversion.direction.replace("_", " ", 1) if conversion.direction != "other" else "another layout"
    owner = "fused into a kernel that computes" if conversion.fused else _OWNER_WORDS[conversion.owner]
    tensor = conversion.tensor if conversion.tensor != "unknown" else None
    count = f"{conversion.count} launches" if conversion.count > 1 else None
    return FlowNode(
        key=conversion_key(conversion),
        label=f"convert {change}",
        detail=", ".join(part for part in (clean_name(conversion.id), tensor, owner, count) if part),
        kind="conversion",
        memory_format=format_of(conversion.target) if conversion.target else _format_of_direction(conversion),
        is_redundant=is_redundant,
        place=place_of(conversion.location, conversion.module),
        seconds=conversion.seconds,
    )


def _format_of_direction(conversion: Conversion) -> FlowFormat:
    formats: dict[str, FlowFormat] = {
        "to_channels_last": "channels_last",
        "to_contiguous": "contiguous",
        "to_blocked": "blocked",
    }
    return formats.get(conversion.direction, "unknown")


def format_of(layout: Layout | None) -> FlowFormat:
    """
    The one kind of memory format a layout has; ``unknown`` where it satisfies several, or none.

    Args:
        layout: Any; None where not known.
    """
    if layout is None:
        return "unknown"
    if layout.is_blocked:
        return "blocked"
    if len(layout.memory_formats) != 1:
        return "unknown"
    return "contiguous" if layout.memory_formats[0] == "contiguous_format" else "channels_last"


def format_words(layout: Layout | None) -> str:
    """
    A layout's memory format in words: ``channels_last``, ``blocked aBcd16b``; empty where not known.

    Args:
        layout: Any; None where not known.
    """
    if layout is None:
        return ""
    if layout.format is not None:
        return f"blocked {clean_name(layout.format)}"
    if layout.memory_formats:
        return " or ".join(name.removesuffix("_format") for name in layout.memory_formats)
    return "other strides" if layout.stride is not None else ""


def layout_words(layout: Layout | None) -> str:
    """
    A layout on an edge: ``2x64x56x56 channels_last``; empty where not known.

    Args:
        layout: Any; None where not known.
    """
    if layout is None:
        return ""
    return clean(f"{'x'.join(str(size) for size in layout.shape)} {format_words(layout)}".strip(), 80)


def carries_layout(layout: Layout | None) -> bool:
    """
    Whether a value is big enough for its layout to matter: no vector per channel.

    Args:
        layout: Any; None where not known.
    """
    return layout is not None and len(layout.shape) > 2 and sum(size != 1 for size in layout.shape[1:]) > 1


def fx_box(key: str, node: FxNode, seconds: float | None) -> FlowNode:
    """
    The box of an FX node.

    Args:
        key: Its key.
        node: The node.
        seconds: Its time; None where not known.
    """
    is_input = node.op in ("placeholder", "get_attr")
    kind: FlowKind = "input" if is_input else "output" if node.op == "output" else "operation"
    detail = None if is_input or base_name(node.target) in node.name else clean_name(node.target)
    return FlowNode(
        key=key,
        label=clean_name(node.name),
        detail=node.tensor if is_input and node.tensor not in (None, "unknown") else detail,
        kind="convolution" if is_convolution(node) else kind,
        memory_format=format_of(node.layout),
        place=place_of(node.location, node.module),
        seconds=seconds,
    )
