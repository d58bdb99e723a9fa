"""The layout of a node or buffer, with a value that means that no layout was recorded."""

from __future__ import annotations

from layoutdoctor.diagnosis import Buffer, FxNode, Layout

UNKNOWN = Layout((), None, ())
"""A layout that was not recorded: it has no dimensions, and satisfies no memory format."""


def layout_or_unknown(value: FxNode | Buffer | None) -> Layout:
    """The layout of a node or buffer; ``UNKNOWN`` if it was not recorded, or if ``value`` is None."""
    return UNKNOWN if value is None or value.layout is None else value.layout
