"""
Small pieces of text that all reports share: cleaned names, places, costs, errors.

Every string that comes out of a record goes through ``clean`` once, in a section: names of modules and files are data,
and no escape sequence or line break in them may reach a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from layoutdoctor.diagnosis import Conversion, Diagnosis, SourceKind, SourceLocation, Trial
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import (
    DIRECTION_WORDS,
    STATUS_WORDS,
    joined,
    line_words,
    name_in_words,
    phrase,
)

NAME_LENGTH = 100
MESSAGE_LENGTH = 1000
CLAUSE_LENGTH = 160
LONGEST_CLAUSE = 400
KERNEL_LENGTH = 60
"""Shown characters of a kernel's name. Names may have thousands of characters, but differ at the beginning."""

# Control, format (bidirectional overrides), surrogate, private use, unassigned; line and paragraph separators.
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_INSTALLED = re.compile(r"(?:^|/)((?:site|dist)-packages/.+)$")
_ELSEWHERE = re.compile(r"[/~<]|[A-Za-z]:")
_NO_FILE = re.compile(r"^<[^/]*$")  # such as <string>; <path>/model.py is a file whose folders were taken out
_SENTENCE_END = re.compile(r"(?<=[.!?;]) ")
_OPTION = re.compile(r"--(budget|configurations|lower-for|mode|target)(?: ([a-z][\w,-]*))?")


def clean(text: str, length: int = MESSAGE_LENGTH) -> str:
    """Makes a text fit for one line of any terminal: escapes unprintable characters, and cuts long texts."""
    shown = " ".join(text[: 2 * length].split())
    if not shown.isprintable():  # Python's definition is stricter, and fast
        shown = "".join(map(_printable, shown))
    return _cut(shown, length)


def clean_name(text: str) -> str:
    """Makes a name (of a configuration, a module, a kernel) fit for one line of any terminal."""
    return clean(text, NAME_LENGTH)


def clean_line(line: str, length: int = MESSAGE_LENGTH) -> str:
    """Makes a line of code or of a log fit for any terminal, and keeps its indentation."""
    text = line.lstrip(" ")
    shown = "".join(map(_printable, text[: 2 * length].strip()))
    return " " * min(len(line) - len(text), NAME_LENGTH) + _cut(shown, length)


def clean_log(log: str) -> str:
    """Returns the lines of a log that are not blank, each cleaned and cut to 300 characters."""
    return "\n".join(clean_line(line, 300) for line in log.splitlines() if line.strip())


def _cut(text: str, length: int) -> str:
    """Cuts a text that is too long; a number at the cut is left out, so that no part of it is shown."""
    if len(text) <= length:
        return text
    kept = text[: length - 3]
    whole = _NUMBER_AT_END.sub("", kept) if _GOES_ON.match(text[length - 3 :]) else kept
    return f"{(whole or kept).rstrip()}..."


_NUMBER_AT_END, _GOES_ON = re.compile(r"(?<![^\s(])\d[\d.,]*\Z"), re.compile(r"[.,]?\d")


def _printable(character: str) -> str:
    if unicodedata.category(character) not in _UNPRINTABLE_CATEGORIES:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def place_of(location: SourceLocation | None, module: str | None) -> str:
    """Returns file and line, then the path of the module; empty if neither is known."""
    line = phrase("{}", location, lambda place: clean(line_words(place, with_folders=True), 200))
    path = phrase("{}", module, clean_name)
    if path and not line and path.replace(".", "").isdigit():  # within a Sequential
        path = f"module {path}"
    return joined((line, path), "  ")


def project_path(file: str) -> str | None:
    """
    Returns a file's path within the project, with forward slashes; never an absolute path or one with ``..``.

    The path of a file of an installed package begins at ``site-packages``. For any other file outside the project, only
    the file's name is returned.

    Args:
        file: A path as Python, or a trace, reported it.

    Returns:
        The path; None for a name that is no file, such as ``<string>``.
    """
    path = file.replace("\\", "/").strip()
    if not path or path.endswith("/") or _NO_FILE.match(path):
        return None
    installed = _INSTALLED.search(path)
    path = installed[1] if installed is not None else path.removeprefix(f"{Path.cwd().as_posix()}/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or parts[-1] == "..":
        return None
    if ".." in parts or _ELSEWHERE.match(path):
        return parts[-1].rpartition(":")[2] or None
    return "/".join(parts)


def costs(seconds: float | None, bytes_moved: int | None) -> tuple[str, str]:
    """Returns the time and the moved bytes as texts: ``"1.2 ms"``, ``"6.12 MiB moved"``; an unknown one is empty."""
    return phrase("{}", seconds, format_seconds), phrase("{} moved", bytes_moved, format_bytes)


def format_error(error: float) -> str:
    """Formats a numerical error, zero or more, with two digits: ``"3e-7"``, ``"0.25"``."""
    if not 0 < error < 1e-3:
        return f"{error:.2g}"
    digits, exponent = f"{error:.1e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def is_from_python(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis was made by a call in Python: then its reader knows arguments, not the command's options."""
    return diagnosis.environment.command is None and not diagnosis.is_recording


def in_python(text: str) -> str:
    """Replaces the command's options in a text by arguments: ``configurations="all"``, ``budget_seconds``."""

    def argument(match: re.Match[str]) -> str:
        name = "budget_seconds" if match[1] == "budget" else match[1].replace("-", "_")
        return f'{name}="{match[2]}"' if match[2] else name

    return _OPTION.sub(argument, text)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """
    The run that a recording holds.

    Attributes:
        trial: The trial of the run; its status is not ``ok`` if its file could not be examined.
        sources: The kinds of files from which the kernels were read.
        kind: The kind of file from which the run was read.
    """

    trial: Trial
    sources: tuple[SourceKind, ...]
    kind: Literal["trace", "table", "log", "compiles"]


def recorded_run(diagnosis: Diagnosis) -> RecordedRun | None:
    """Returns the recorded run; None for the diagnosis of a model."""
    if not diagnosis.is_recording:
        return None
    trial = next((trial for trial in diagnosis.trials if trial.status == "ok"), diagnosis.trials[0])
    if trial.status != "ok":
        return RecordedRun(trial, (), "trace")
    if trial.kernels is None:  # a trace, table or log would have kernels
        lacks_kernels = any(lack.part == "kernels" for lack in trial.lacks)
        return RecordedRun(trial, ("captured_compiles" if lacks_kernels else "torch_trace_log",), "compiles")
    sources = trial.kernel_summary.sources
    if "onednn_log" in sources:
        return RecordedRun(trial, sources, "log")
    return RecordedRun(trial, sources, "table" if "totals_table" in sources else "trace")


def shown_name(name: str) -> str:
    """Returns the name of a configuration as reports show it: ``"compiled + channels_last"``."""
    return clean_name(name_in_words(name))


def baseline_phrase(name: str) -> str:
    """Returns words for the baseline within a sentence."""
    return "torch.compile's default" if name == BASELINE else shown_name(name)


def failure_clause(trial: Trial) -> str:
    """Says in one clause why a trial whose status is not ``ok`` has no result of its own."""
    word = STATUS_WORDS.get(trial.status, trial.status)
    if trial.failure is None:
        return f"{word}: the reason was not recorded"
    stage = "" if trial.status == "skipped" else f" ({clean_name(trial.failure.kind)})"
    where = phrase(" at {}", trial.failure.location, lambda place: clean_name(line_words(place)))
    if trial.failure.cause == "refused_view":
        return f"{word}{stage}: `.view`{where} needs contiguous memory; use .reshape"
    return f"{word}{stage}{where}: {_in_short(trial.failure.message)}"


def _in_short(message: str) -> str:
    """Returns the first sentences of a message that fit into a clause, and its last sentence, which says what to do."""
    kept, *others = _SENTENCE_END.split(clean(message))
    while others and len(kept) + len(others[0]) < CLAUSE_LENGTH:
        kept = f"{kept} {others.pop(0)}"
    if others and len(kept) + len(others[-1]) < LONGEST_CLAUSE:
        kept = f"{kept} {others[-1]}"
    return clean(kept.removesuffix(";"), LONGEST_CLAUSE)


def direction_words(conversion: Conversion) -> str:
    """Names the direction of a conversion; says that the direction "other" may be unknown if no layout was recorded."""
    is_known = conversion.direction != "other" or conversion.source or conversion.target
    return DIRECTION_WORDS[conversion.direction] + ("" if is_known else ", or of unknown direction")
