"""
Small pieces of text that all reports share: cleaned names, counted nouns, lists in words.

Every string that comes out of a record goes through ``clean`` once, in the view: names of modules and files are data,
and no escape sequence or line break in them may reach a terminal. Faces the view; imports units only.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from layoutdoctor.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.records import SourceLocation

NAME_LENGTH = 100
MESSAGE_LENGTH = 1000
NOT_RECORDED = "not recorded"
STATUS_WORDS = {
    "failed": "failed",
    "timed_out": "timed out",
    "crashed": "crashed",
    "skipped": "skipped",
}
"""What is said of a trial without a result, by its status."""

# Control, format (bidirectional overrides), surrogate, private use, unassigned; line and paragraph separators.
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def clean(text: str, length: int = MESSAGE_LENGTH) -> str:
    """
    Text that can stand on one line of any terminal: what cannot be printed is shown as its escape.

    Args:
        text: Anything out of a record.
        length: Characters to keep; the cut is shown as three dots.
    """
    one_line = " ".join(text[: 2 * length].split())
    shown = one_line
    if not one_line.isprintable():  # Python's word for it is stricter, and fast
        shown = "".join(character if _is_printable(character) else _escape(character) for character in one_line)
    return shown if len(shown) <= length else f"{shown[: length - 3].rstrip()}..."


def clean_name(text: str) -> str:
    """
    A name (of a configuration, a module, a kernel) that can stand on one line of any terminal.

    Args:
        text: Anything out of a record.
    """
    return clean(text, NAME_LENGTH)


def clean_line(line: str, length: int = MESSAGE_LENGTH) -> str:
    """
    One line of code or of a log that can stand on one line of any terminal, with its indentation.

    Args:
        line: Anything out of a record.
        length: Characters to keep after the indentation; the cut is shown as three dots.
    """
    text = line.lstrip(" ")
    return " " * min(len(line) - len(text), NAME_LENGTH) + clean(text, length)


def _is_printable(character: str) -> bool:
    return unicodedata.category(character) not in _UNPRINTABLE_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """
    A count with its noun: ``"1 kernel"``, ``"2 kernels"``.

    Args:
        count: How many.
        noun: The singular.
        plural: The plural where it is not the singular with an ``s``.
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def in_words(parts: Iterable[str]) -> str:
    """
    Several things in one sentence: ``"a, b and c"``.

    Args:
        parts: The things, in order.
    """
    listed = list(parts)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def place_of(location: SourceLocation | None, module: str | None) -> str | None:
    """
    Where something is: file and line, then the module's path; None where neither is known.

    Args:
        location: The user's line.
        module: Path of the nn.Module.
    """
    parts = [clean(str(location), 200) if location else "", clean_name(module) if module else ""]
    return "  ".join(part for part in parts if part) or None


def share_of(part: float, whole: float | None) -> str:
    """
    A share in brackets with a space before it, or nothing where the whole is not known.

    Args:
        part: The part, in seconds.
        whole: The whole, in seconds.
    """
    return f" ({format_share(part / whole)})" if whole else ""


def format_error(error: float) -> str:
    """
    A numerical error in two digits: ``"3e-7"``, ``"0.25"``.

    Args:
        error: A difference, zero or more.
    """
    return f"{error:.2g}".replace("e-0", "e-")


def cut_list(parts: Sequence[str], most: int) -> str:
    """
    A list in words that says how many it leaves out.

    Args:
        parts: The things, in order.
        most: How many to name.
    """
    if len(parts) <= most:
        return in_words(parts)
    return f"{', '.join(parts[:most])} and {len(parts) - most} more"
