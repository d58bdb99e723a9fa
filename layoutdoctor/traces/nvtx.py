"""
What the text of an NVTX range says: an operation with its sequence number and sizes, or a range that somebody named.

``torch.autograd.profiler.emit_nvtx`` puts all it knows of an operation into the range's text. Faces ``nsys``; no torch.

Source:
    torch 2.13, ``torch/csrc/profiler/util.cpp``, ``getNvtxStr``: the parts come in one order, each may be absent;
    before 1.13 there was no ``op_id`` and no ``input_op_ids``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from layoutdoctor.traces.recorded import NONE

LONGEST_NAME = 1 << 16
"""Characters of a name that are kept; the longest kernel name seen has 5 160."""

_MOST_DIGITS = 18
_Sizes = list[list[int | list[int]]]


@dataclass(frozen=True, slots=True)
class RangeText:
    """
    The parts of a range's text.

    Attributes:
        name: Such as ``aten::conv2d``.
        is_operation: Whether torch wrote it for an operation; False for a range that a person or a library named.
        sequence: Links an operation with the autograd node it made; ``NONE`` where the text has none.
        shapes: Sizes of the arguments as JSON; empty where the text has none.
        has_unread_sizes: Whether there are sizes that could not be read, as in a text that was cut.
    """

    name: str
    is_operation: bool
    sequence: int = NONE
    shapes: bytes = b""
    has_unread_sizes: bool = False


def read_range_text(text: str) -> RangeText:
    """
    Takes a range's text apart.

    Args:
        text: Such as ``aten::conv2d, seq = 5, op_id = 12, sizes = [[1, 3, 8, 8], [4, 3, 1, 1]], input_op_ids = []``.
    """
    rest = _before(text, ", input_op_ids = ")[0]
    rest, sizes = _before(rest, ", sizes = ")
    rest, operation_id = _number_behind(rest, ", op_id = ")
    name, sequence = _number_behind(rest, ", seq = ")
    shapes = b"" if sizes is None else _shapes(sizes)
    # record_function ranges carry an op_id as well, but no sequence number, no sizes and no namespace.
    is_operation = sizes is not None or sequence != NONE or name.startswith("aten::")
    if operation_id != NONE and "::" in name:
        is_operation = True
    return RangeText(
        name=name[:LONGEST_NAME],
        is_operation=is_operation,
        sequence=sequence,
        shapes=shapes,
        has_unread_sizes=sizes is not None and not shapes,
    )


def _before(text: str, mark: str) -> tuple[str, str | None]:
    """What stands before the last mark, and what behind it; None where there is no mark."""
    head, found, tail = text.rpartition(mark)
    return (head, tail) if found else (text, None)


def _number_behind(text: str, mark: str) -> tuple[str, int]:
    head, tail = _before(text, mark)
    if tail is None or not (tail.isascii() and tail.isdigit()) or len(tail) > _MOST_DIGITS:
        return text, NONE
    return head, int(tail)


@lru_cache(maxsize=4096)  # a model's operations have the same sizes in every step
def _shapes(text: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=_Sizes))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return b""
