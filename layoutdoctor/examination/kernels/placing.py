"""oneDNN's primitives: the operations that ran them, and their entries in the kernel list."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis import Conversion, Kernel
from layoutdoctor.examination.kernels.operations import OPERATION, HostOperation, is_backward
from layoutdoctor.examination.where import Where, where

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive
    from layoutdoctor.recording.onednn import OnednnLog, Primitive


def place_primitives(tree: Sequence[HostOperation], log: OnednnLog, base: float) -> list[Primitive]:
    """
    Puts each primitive into the innermost operation that ran it.

    Args:
        base: Unix time, in seconds, at which starts in the tree are 0; from ``base_seconds``.

    Returns:
        The primitives that ran in no known operation; all primitives if the log has no timestamps.
    """
    starts = [entry.start_seconds for entry in tree]
    unplaced: list[Primitive] = []
    for primitive in log.primitives:
        moment = (primitive.start_seconds or 0.0) - base + _CLOCK_RESOLUTION_SECONDS
        home = _innermost(tree, starts, moment)
        (unplaced if home is None else home.primitives).append(primitive)
    return unplaced


_CLOCK_RESOLUTION_SECONDS = 1e-6
"""oneDNN prints microseconds; a primitive never starts within the first microsecond of its operation."""


def _innermost(tree: Sequence[HostOperation], starts: Sequence[float], moment: float) -> HostOperation | None:
    index = bisect.bisect_right(starts, moment) - 1
    around = tree[index].around() if index >= 0 else ()
    running = (entry for entry in around if entry.end_seconds >= moment)
    return next((entry for entry in running if OPERATION.match(entry.name)), None)


def add_primitive(
    kernels: list[Kernel],
    conversions: list[Conversion],
    item: AnnotatedPrimitive,
    entry: HostOperation | None,
    origin_unix: float,
) -> None:
    """
    Adds a primitive to the kernel list; if the primitive is a reorder, also to the conversions.

    Args:
        origin_unix: Unix time, in seconds, at which starts in the list are 0.
    """
    primitive = item.primitive
    start = None if primitive.start_seconds is None else max(0.0, primitive.start_seconds - origin_unix)
    begin, place, graph, is_computed, backward = start, Where(), None, False, primitive.prop_kind.startswith("backward")
    if entry is not None:
        joined = entry.joined()
        place, graph, is_computed = where(joined.node, entry.name), joined.graph, joined.has_computed_weight
        begin, backward = entry.start_seconds if start is None else start, is_backward(entry)
    kernels.append(
        Kernel(
            name=primitive.kind,
            seconds=primitive.seconds,
            start_seconds=begin,
            op=place.op,
            library="onednn",
            problem=primitive.problem,
            implementation=primitive.implementation,
            backward=backward,
            node=place.node,
            graph=graph,
        )
    )
    if primitive.kind != "reorder":
        return
    of_node: dict[str, Any] = {}
    if place.node is not None:
        cause = f"{place.op} runs in a format of its own"
        of_node = {"port": item.port, "cause": cause, "required_by": (place.node,)}
    conversions.append(
        Conversion(
            id=f"reorder {len(conversions)}",
            owner="library",
            kernel=f"reorder {primitive.implementation}",
            **place._asdict(),
            source=item.source,
            target=item.target,
            direction=item.direction,
            tensor="activation" if is_computed and item.tensor == "weight" else item.tensor,
            seconds=primitive.seconds,
            bytes_moved=item.bytes_moved,
            start_seconds=start,
            dtype=item.dtype,
            graph=graph,
            seconds_source="measured",
            **of_node,
        )
    )
