"""
Which operation ran which oneDNN primitive, where the log has no timestamps: by their order alone.

The k-th convolution that ran is the k-th convolution in the log. Where that cannot hold (other counts, a backward
primitive in a forward operation, a kind of primitive whose operation is not known), nothing is placed at all.
Faces ``kernel_list``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.traces.onednn import Primitive

_RESULT_ROLES = {"backward_data": ("src",), "backward_weights": ("wei", "bia")}
"""oneDNN's roles of what a backward convolution writes; a forward one writes ``dst``."""


def place_by_order(
    are_backward: Sequence[bool], primitives: Sequence[Primitive]
) -> tuple[list[list[Primitive]], list[Primitive]] | None:
    """
    The primitives of each convolution operation, and those that belong to none of them.

    Reorders go with the convolution they stand before, except those that read the result of the one before them.

    Args:
        are_backward: For each convolution operation that ran, in order, whether it is a backward one.
        primitives: The log, in order.

    Returns:
        None where the two do not fit together.
    """
    placed: list[list[Primitive]] = []
    pending: list[Primitive] = []
    others: list[Primitive] = []
    for primitive in primitives:
        if primitive.kind == "convolution":
            if not placed or _starts_operation(placed[-1], primitive):
                placed.append([])
            placed[-1] += [*pending, primitive]
            pending = []
        elif primitive.kind != "reorder":
            others += [*pending, primitive]
            pending = []
        elif placed and not pending and _reads_result(placed[-1], primitive):
            placed[-1].append(primitive)
        else:
            pending.append(primitive)
    fits = len(placed) == len(are_backward) and all(
        _is_backward(own) == backward for own, backward in zip(placed, are_backward, strict=True)
    )
    has_unknown = any(primitive.kind == "deconvolution" for primitive in others)
    return (placed, others + pending) if fits and not has_unknown else None


def _starts_operation(running: Sequence[Primitive], primitive: Primitive) -> bool:
    """Whether a convolution belongs to the next operation; a weight gradient follows the data gradient of its own."""
    last = next(item for item in reversed(running) if item.kind == "convolution")
    together = (last.prop_kind, primitive.prop_kind) == ("backward_data", "backward_weights")
    return not together or last.problem != primitive.problem


def _reads_result(running: Sequence[Primitive], reorder: Primitive) -> bool:
    """Whether a reorder reads what the last convolution wrote in a format of its own."""
    last = next(item for item in reversed(running) if item.kind == "convolution")
    source = reorder.descriptor("src")
    if source is None or not (any(letter.isdigit() for letter in source.tag) or source.tag == "a"):
        return False
    results = [last.descriptor(role) for role in _RESULT_ROLES.get(last.prop_kind, ("dst",))]
    return any(result is not None and result.tag == source.tag for result in results)


def _is_backward(own: Sequence[Primitive]) -> bool:
    return any(item.prop_kind.startswith("backward") for item in own)
