"""
The lines of a text file that arrives in pieces, one at a time, however long the file and whatever its encoding.

Faces the readers of text; imports nothing of the package.
"""

from __future__ import annotations

import codecs
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST_LINE = 1 << 17
"""Characters; the csv module takes no longer field either."""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def text_encoding(head: bytes) -> tuple[str, int]:
    """
    The encoding a byte order mark stands for, and the mark's length; UTF-8 where there is none.

    Args:
        head: First bytes of a file. PowerShell's ``>`` writes UTF-16.
    """
    return next(((name, len(mark)) for mark, name in _MARKS if head.startswith(mark)), ("utf-8", 0))


def read_lines(pieces: Iterable[bytes]) -> Iterator[str | None]:
    """
    The lines of a text, without their ends; None for one that is longer than ``LONGEST_LINE``.

    Args:
        pieces: The bytes, in order. What is no text of the encoding becomes a replacement character.
    """
    remaining = iter(pieces)
    head = b""
    while len(head) < len(codecs.BOM_UTF8) and (piece := next(remaining, b"")):
        head += piece
    encoding, skipped = text_encoding(head)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest, is_too_long = "", False
    for piece in chain([head[skipped:]], remaining):
        *whole, rest = (rest + decoder.decode(piece)).split("\n")
        for line in whole:
            yield None if is_too_long or len(line) > LONGEST_LINE else line.rstrip("\r")
            is_too_long = False
        if len(rest) > LONGEST_LINE:
            rest, is_too_long = "", True
    if rest or is_too_long:
        yield None if is_too_long else rest.rstrip("\r")
