"""
Small pieces of text that all reports share: cleaned names, places, shares, errors.

Every string that comes out of a record goes through ``clean`` once, in a section: names of modules and files are data,
and no escape sequence or line break in them may reach a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.units import format_seconds, format_share

if TYPE_CHECKING:
    from layoutdoctor.records import SourceLocation

NAME_LENGTH = 100
MESSAGE_LENGTH = 1000
KERNEL_LENGTH = 60
"""Kernel names run to thousands of characters; what tells one from another stands at their beginning."""

# Control, format (bidirectional overrides), surrogate, private use, unassigned; line and paragraph separators.
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_INSTALLED = re.compile(r"(?:^|/)((?:site|dist)-packages/.+)$")
_DRIVE = re.compile(r"^[A-Za-z]:")
_NO_FILE = re.compile(r"^<[^/]*$")  # such as <string>; <path>/model.py is a file whose folders were taken out


def clean(text: str, length: int = MESSAGE_LENGTH) -> str:
    """
    Text that can stand on one line of any terminal: what cannot be printed is shown as its escape.

    Args:
        length: Characters to keep; the cut is shown as three dots.
    """
    one_line = " ".join(text[: 2 * length].split())
    shown = one_line
    if not one_line.isprintable():  # Python's word for it is stricter, and fast
        shown = "".join(character if _is_printable(character) else _escape(character) for character in one_line)
    return shown if len(shown) <= length else f"{shown[: length - 3].rstrip()}..."


def clean_name(text: str) -> str:
    """A name (of a configuration, a module, a kernel) that can stand on one line of any terminal."""
    return clean(text, NAME_LENGTH)


def clean_if_known(text: str | None) -> str | None:
    """A name, or None where it is not known."""
    return None if text is None else clean_name(text)


def clean_line(line: str, length: int = MESSAGE_LENGTH) -> str:
    """
    One line of code or of a log that can stand on one line of any terminal, with its indentation.

    Args:
        length: Characters to keep after the indentation; the cut is shown as three dots.
    """
    text = line.lstrip(" ")
    return " " * min(len(line) - len(text), NAME_LENGTH) + clean(text, length)


def clean_log(log: str, length: int) -> str:
    """The lines of a log that are not blank, each cleaned and cut to a length."""
    return "\n".join(clean_line(line, length) for line in log.splitlines() if line.strip())


def _is_printable(character: str) -> bool:
    return unicodedata.category(character) not in _UNPRINTABLE_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def place_of(location: SourceLocation | None, module: str | None) -> str | None:
    """Where something is: file and line, then the path of the module; None where neither is known."""
    parts = [clean(str(location), 200) if location else "", clean_name(module) if module else ""]
    return "  ".join(part for part in parts if part) or None


def project_path(file: str) -> str | None:
    """
    A path within the project, with forward slashes; never an absolute one, and none that leads out of the project.

    Installed packages stay readable from ``site-packages`` on. A file below the present directory is relative to it; of
    any other one the name alone is left.

    Args:
        file: A path as Python, or a trace, reported it.

    Returns:
        The path; None for what is no file, such as ``<string>``.
    """
    path = file.replace("\\", "/").strip()
    if not path or path.endswith("/") or _NO_FILE.match(path):
        return None
    installed = _INSTALLED.search(path)
    if installed is not None:
        path = installed[1]
    elif path.startswith("/") or _DRIVE.match(path):
        path = _below_here(path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        return None
    if ".." in parts or parts[0].startswith(("~", "<")) or _DRIVE.match(parts[0]):
        last = _DRIVE.sub("", parts[-1])
        return last if last not in ("", "..") else None
    return "/".join(parts)


def _below_here(path: str) -> str:
    here = Path.cwd().as_posix().rstrip("/") + "/"
    return path.removeprefix(here) if path.startswith(here) and here != "/" else path.rsplit("/", 1)[-1]


def share_of(part: float, whole: float | None) -> str:
    """A share in brackets with a space before it, or nothing where the whole is not known."""
    return f" ({format_share(part / whole)})" if whole else ""


def precise_share(part: float, whole: float) -> str:
    """A share with one decimal, also where it is large: ``"26.6 %"``; the whole is above zero."""
    return f"{100 * part / whole:.1f} %"


def format_error(error: float) -> str:
    """A numerical error, zero or more, in two digits: ``"3e-7"``, ``"0.25"``."""
    return f"{error:.2g}".replace("e-0", "e-")


def alone_clause(exposed: float | None, whole: float | None) -> str:
    """
    How much of a time was spent with nothing else running, with a comma before it; empty where not known.

    Args:
        exposed: That part, in seconds.
        whole: The time, in seconds.
    """
    if exposed is None or not whole:
        return ""
    if exposed <= 0:
        return ", always with something else running"
    part = "all" if format_seconds(exposed) == format_seconds(whole) else f"{format_seconds(exposed)} of that"
    return f", {part} with nothing else running"
