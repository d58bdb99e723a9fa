"""
Code that repeats, written once: lists as comprehensions, statements as loops.

Faces the reproducer's code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH = 118
"""Columns of a line of a script."""


@dataclass(frozen=True, slots=True)
class Statement:
    """
    A line of ``forward``.

    Attributes:
        text: The line, with ``@`` for each number of a layer.
        numbers: Those numbers, in order; a loop may count them.
    """

    text: str
    numbers: tuple[int, ...]


def packed(items: Sequence[str], indent: str) -> list[str]:
    """
    Items of a list, as many on a line as fit.

    Args:
        items: Code of each.
        indent: What a line starts with.
    """
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{indent}{item},")
    return lines


def item_text(block: Sequence[str], count: int) -> str:
    """
    A block of a list's items, as often as it comes in a row.

    Args:
        block: Code of each item.
        count: How often.
    """
    if count == 1:
        return ", ".join(block)
    if len(block) == 1:
        return f"*[{block[0]} for _ in range({count})]"
    return f"*[layer for _ in range({count}) for layer in ({', '.join(block)})]"


def folded_items(items: list[str]) -> list[tuple[list[str], int]]:
    """
    Items of a list with how often each comes in a row: single ones, and blocks that repeat.

    Args:
        items: Code of each.
    """

    def found(position: int) -> tuple[int, int]:
        return _repetition(position, len(items), lambda one, two, _: items[one] == items[two])

    folded: list[tuple[list[str], int]] = []
    position = 0
    while position < len(items):
        block, count = found(position)
        # People write a block with its convolution first; the same repetition is found from every one of its layers.
        starts = [p for p in range(position + 1, position + block) if items[p].startswith("nn.Conv")]
        is_better = not items[position].startswith("nn.Conv") and any(found(p) == (block, count) for p in starts)
        if count * block <= block + 1 or is_better:
            block, count = 1, 1
        folded.append((items[position : position + block], count))
        position += block * count
    return folded


def looped(statements: Sequence[Statement]) -> list[str]:
    """
    Lines of statements; blocks that repeat but for the numbers of their layers become loops.

    Args:
        statements: In order.
    """
    lines: list[str] = []
    position = 0
    while position < len(statements):

        def is_same(one: int, two: int, shift: int) -> bool:
            a, b = statements[one], statements[two]
            return a.text == b.text and b.numbers == tuple(number + shift for number in a.numbers)

        block, count = _repetition(position, len(statements), is_same, statements)
        if count > 1:
            first = statements[position : position + block]
            start = min((number for s in first for number in s.numbers), default=0)
            shift = _shift(statements, position, block)
            end = start + shift * count
            counted = f"{start}, {end}, {shift}" if shift > 1 else f"{start}, {end}" if start else str(end)
            lines.append(f"for i in range({counted}):")
            lines += [f"    {_numbered(s, start)}" for s in first]
        else:
            block, count = 1, 1
            lines.append(_numbered(statements[position], None))
        position += block * count
    return lines


def _numbered(statement: Statement, start: int | None) -> str:
    numbers = iter(statement.numbers)

    def text(_: re.Match[str]) -> str:
        number = next(numbers)
        return str(number) if start is None else "i" if number == start else f"i + {number - start}"

    return re.sub("@", text, statement.text)


def _shift(statements: Sequence[Statement], position: int, block: int) -> int:
    for index in range(position, position + block):
        if statements[index].numbers and index + block < len(statements) and statements[index + block].numbers:
            return statements[index + block].numbers[0] - statements[index].numbers[0]
    return 0


def _repetition(
    position: int,
    length: int,
    is_same: Callable[[int, int, int], bool],
    statements: Sequence[Statement] | None = None,
) -> tuple[int, int]:
    """Length and count of the block that repeats from here and covers most; (1, 1) where none does."""
    best = (1, 1)
    for block in range(1, min((length - position) // 2, 24) + 1):
        shift = _shift(statements, position, block) if statements is not None else 0
        if statements is not None and shift <= 0:
            continue
        count = 1
        while position + (count + 1) * block <= length and all(
            is_same(position + offset, position + count * block + offset, shift * count) for offset in range(block)
        ):
            count += 1
        if count > 1 and block * (count - 1) > best[0] * (best[1] - 1):
            best = (block, count)
    return best
