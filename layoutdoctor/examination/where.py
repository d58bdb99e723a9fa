"""The place in a model at which something ran."""

from __future__ import annotations

from typing import NamedTuple

from layoutdoctor.diagnosis import FxNode, SourceLocation


class Where(NamedTuple):
    """The node, operation, line and module, as in ``Conversion``; a field is None if it is not known."""

    node: str | None = None
    op: str | None = None
    location: SourceLocation | None = None
    module: str | None = None


def where(node: FxNode | None, op: str | None = None) -> Where:
    """
    The place of a node; without a node, only the operation is known.

    Args:
        op: The operation that ran; None for the node's target.
    """
    return Where(op=op) if node is None else Where(node.name, op or node.target, node.location, node.module)
