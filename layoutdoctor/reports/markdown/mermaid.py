"""
A layout flow as a Mermaid flowchart, which GitHub draws from a fenced block.

What comes from a record stands in quoted labels, with every character but a few written as Mermaid's entity code: no
name can end a label, start a directive or a comment, or be read as Markdown or HTML. Faces the Markdown report.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from layoutdoctor.reports.flow.flows import Flow, FlowFormat, FlowKind, FlowNode

LINE_LENGTH = 70
"""Characters of one line of a box; Mermaid draws no box narrower than its longest line."""

# Mermaid cuts "style ...: ... #...;" short, decodes "#...;", and reads labels as Markdown: none of these signs stays.
_PLAIN = re.compile(r"[A-Za-z0-9 ,()/=+]|(?<=[A-Za-z0-9])[._-](?=[A-Za-z0-9])")
# Once decoded, Mermaid would still read a backslash with an n, two dollars, and "fa:fa-": nothing visible parts them.
_PARTED = re.compile(r"\\(?=n)|\$(?=\$)|:(?=fa-)")
_ZERO_WIDTH_SPACE = "\u200b"
_FOLDERS = re.compile(r"^[^ ]*[/\\]")
_NOT_FOR_TITLES = re.compile(r"[^A-Za-z0-9 ,.()_-]+")

_SHAPES: dict[FlowKind, tuple[str, str]] = {
    "convolution": ("[", "]"),
    "operation": ("(", ")"),
    "conversion": ("{{", "}}"),
    "input": ("([", "])"),
    "output": ("([", "])"),
}
# Dark text on light boxes, so that both of GitHub's themes show them alike.
_CLASSES: dict[FlowFormat, str] = {
    "channels_last": "fill:#d7ecff,stroke:#1f5fa8,color:#0b2545",
    "contiguous": "fill:#ffe9c7,stroke:#a86a00,color:#3d2600",
    "blocked": "fill:#e7defa,stroke:#6b45b0,color:#2a1650",
    "unknown": "fill:#eeeeee,stroke:#6b6b6b,color:#222222",
}
_REDUNDANT = "stroke:#c1121f,stroke-width:3px,stroke-dasharray:6 4"


def render_mermaid(flow: Flow) -> str:
    """
    A flow as the source of a Mermaid flowchart.

    Args:
        flow: Any; its keys are made anew.

    Returns:
        Lines without a fence around them, no line break at the end.
    """
    names = {node.key: f"n{number}" for number, node in enumerate(flow.nodes)}
    lines = ["flowchart TD", f"    accTitle: {_title(flow)}"]
    for node in flow.nodes:
        opening, closing = _SHAPES[node.kind]
        lines.append(f"    {names[node.key]}{opening}{_quoted(*_lines(node))}{closing}")
    for edge in flow.edges:
        label = f"|{_quoted(edge.label)}|" if edge.label else ""
        lines.append(f"    {names[edge.source]} -->{label} {names[edge.target]}")
    for name, style in _CLASSES.items():
        members = [names[node.key] for node in flow.nodes if node.memory_format == name]
        if members:
            lines += [f"    classDef {name} {style}", f"    class {','.join(members)} {name}"]
    redundant = [names[node.key] for node in flow.nodes if node.is_redundant]
    if redundant:
        lines += [f"    classDef redundant {_REDUNDANT}", f"    class {','.join(redundant)} redundant"]
    return "\n".join(lines)


def _title(flow: Flow) -> str:
    words = _NOT_FOR_TITLES.sub(" ", flow.heading).split()
    return " ".join(words)[: 2 * LINE_LENGTH] or "Layout flow"


def _lines(node: FlowNode) -> tuple[str, ...]:
    redundant = "redundant conversion" if node.is_redundant else None
    seconds = None if node.seconds is None else format_seconds(node.seconds)
    place = _FOLDERS.sub("", node.place) if node.place and node.kind in ("convolution", "conversion") else None
    lines = (redundant, node.label, node.detail, place, seconds)
    return tuple(_shortened(line) for line in lines if line)


def _shortened(line: str) -> str:
    """A line that fits a box; of a long one both ends, as names differ at either."""
    half = (LINE_LENGTH - 3) // 2
    return line if len(line) <= LINE_LENGTH else f"{line[:half].rstrip()}...{line[-half:].lstrip()}"


def _quoted(*lines: str) -> str:
    return f'"{"<br/>".join(_escape(line) for line in lines)}"'


def _escape(text: str) -> str:
    """Text in which only harmless characters stand for themselves."""
    parted = _PARTED.sub(lambda match: match.group() + _ZERO_WIDTH_SPACE, text)
    return "".join(
        character if _PLAIN.match(parted, place) else f"#{ord(character)};" for place, character in enumerate(parted)
    )
