"""
Small pieces of text that all reports share: cleaned names, places, shares, errors.

Every string that comes out of a record goes through ``clean`` once, in a section: names of modules and files are data,
and no escape sequence or line break in them may reach a terminal.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import Number, counted_conversions, parts_of_pairs, sum_known
from layoutdoctor.units import format_seconds
from layoutdoctor.words import (
    DIRECTION_WORDS,
    ONEDNN_LOG,
    STATUS_WORDS,
    TOTALS_TABLE,
    distinct,
    joined,
    line_words,
    name_in_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Ratio, SourceLocation, Trial

_Report = TypeVar("_Report")
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
    """Text for one line of any terminal: what cannot be printed is shown as its escape, a cut as three dots."""
    one_line = " ".join(text[: 2 * length].split())
    shown = one_line
    if not one_line.isprintable():  # Python's word for it is stricter, and fast
        shown = "".join(map(_printable, one_line))
    return shown if len(shown) <= length else f"{shown[: length - 3].rstrip()}..."


def clean_name(text: str) -> str:
    """A name (of a configuration, a module, a kernel) that can stand on one line of any terminal."""
    return clean(text, NAME_LENGTH)


def clean_line(line: str, length: int = MESSAGE_LENGTH) -> str:
    """One line of code or of a log for any terminal, with its indentation, behind which so many characters are kept."""
    text = line.lstrip(" ")
    shown = "".join(map(_printable, text[: 2 * length].strip()))
    shown = shown if len(shown) <= length else f"{shown[: length - 3].rstrip()}..."
    return " " * min(len(line) - len(text), NAME_LENGTH) + shown


def clean_log(log: str) -> str:
    """The lines of a log that are not blank, each cleaned and cut to 300 characters."""
    return "\n".join(clean_line(line, 300) for line in log.splitlines() if line.strip())


def _printable(character: str) -> str:
    if unicodedata.category(character) not in _UNPRINTABLE_CATEGORIES:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def first_that_fits(reports: Iterable[_Report], fits: Callable[[_Report], bool]) -> _Report:
    """Of reports with ever shorter lists the first that fits; the last one, whatever its length, where none does."""
    for report in reports:
        if fits(report):
            break
    return report


def place_of(location: SourceLocation | None, module: str | None) -> str | None:
    """Where something is: file and line, then the path of the module; None where neither is known."""
    line = clean(line_words(location, with_folders=True), 200) if location else None
    path = clean_name(module) if module else None
    if path is not None and line is None and path.replace(".", "").isdigit():  # of a Sequential: no word by itself
        path = f"module {path}"
    return joined((line, path), "  ") or None


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


def finite(number: float | None) -> float | None:
    """A number that JSON has: neither infinite nor none at all."""
    return number if number is not None and math.isfinite(number) else None


def precise_share(part: float, whole: float) -> str:
    """A share with one decimal, also where it is large: ``"26.6 %"``; the whole is above zero."""
    return f"{100 * part / whole:.1f} %"


def format_error(error: float) -> str:
    """A numerical error, zero or more, in two digits: ``"3e-7"``, ``"0.25"``."""
    if not 0 < error < 1e-3:
        return f"{error:.2g}"
    digits, exponent = f"{error:.1e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def alone_clause(exposed: float | None, whole: float | None) -> str:
    """How many of some seconds were spent with nothing else running, with a comma before it; empty where not known."""
    if exposed is None or not whole:
        return ""
    if exposed <= 0:
        return ", always with something else running"
    part = "all" if format_seconds(exposed) == format_seconds(whole) else f"{format_seconds(exposed)} of that"
    return f", {part} with nothing else running"


CLAUSE_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Waste:
    """
    What the redundant pairs of one trial cost in one iteration.

    Attributes:
        seconds: Time of all conversions in them, each counted once; None if not known for every one.
        exposed_seconds: The part of ``seconds`` in which nothing else ran on the device; None if not known for all.
    """

    pair_count: int
    seconds: float | None
    exposed_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """
    How a report calls what a recorded file holds.

    Attributes:
        file: The file: ``trace``, ``table`` or ``log``.
        kernel: One entry of its list: ``kernel`` or ``primitive``.
        time: The time of all of them together, as it stands behind a number: ``recorded GPU time``.
    """

    file: str
    kernel: str
    time: str


def is_recording(diagnosis: Diagnosis) -> bool:
    """Whether it rests on the file of one run, so that nothing was varied, timed or compared."""
    return diagnosis.subject.mode == "trace"


def is_from_python(diagnosis: Diagnosis) -> bool:
    """Whether it was made by a call and not by a command, so that its reader knows arguments and no options."""
    return diagnosis.environment.command is None and not is_recording(diagnosis)


_OPTION = re.compile(r"--(budget|configurations|mode|target)(?: ([a-z][\w,-]*))?")


def in_python(text: str) -> str:
    """A text with arguments in place of options of the command: ``configurations="all"``, ``budget_seconds``."""

    def argument(match: re.Match[str]) -> str:
        name = "budget_seconds" if match[1] == "budget" else match[1]
        return f'{name}="{match[2]}"' if match[2] else name

    return _OPTION.sub(argument, text)


def recorded_trial(diagnosis: Diagnosis) -> Trial | None:
    """What was recorded of the one run; None where its file could not be examined."""
    return next((trial for trial in diagnosis.trials if trial.status == "ok"), None)


def sources_of(diagnosis: Diagnosis) -> list[str]:
    """What kernels were read from, each once, in order."""
    return distinct(source for trial in diagnosis.trials if trial.kernels for source in trial.kernels.sources)


def terms_of(diagnosis: Diagnosis) -> Terms:
    """The words that fit the file a diagnosis was made from."""
    sources = sources_of(diagnosis)
    if ONEDNN_LOG in sources:
        return Terms("log", "primitive", "logged time")
    if TOTALS_TABLE in sources:
        return Terms("table", "kernel", "kernel time in the table")
    return Terms(
        "trace", "kernel", "recorded kernel time" if diagnosis.subject.device == "cpu" else "recorded GPU time"
    )


def find_ratio(diagnosis: Diagnosis, name: str) -> Ratio | None:
    """The ratio of a configuration to the baseline; None if there is none."""
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    return next((ratio for ratio in ratios if ratio.name == name), None)


def shown_name(name: str) -> str:
    """The name of a configuration as reports show it: ``"compiled + channels_last"``."""
    return clean_name(name_in_words(name))


def baseline_phrase(name: str) -> str:
    """The baseline within a sentence."""
    return "torch.compile's default" if name == BASELINE else shown_name(name)


def failure_clause(trial: Trial) -> str:
    """Why a trial has no result, whose status is neither ``ok`` nor ``same_as``, in one clause."""
    word = STATUS_WORDS[trial.status]
    if trial.failure is None:
        return f"{word}: the reason was not recorded"
    stage = "" if trial.status == "skipped" else f" ({clean_name(trial.failure.kind)})"
    place = trial.failure.location
    where = f" at {clean_name(line_words(place))}" if place is not None else ""
    if trial.failure.refuses_view:
        return f"{word}{stage}: `.view`{where} needs contiguous memory; use .reshape"
    return f"{word}{stage}{where}: {clean(trial.failure.message, CLAUSE_LENGTH)}"


def direction_words(conversion: Conversion) -> str:
    """Which way a conversion goes; a kernel's name alone may not say."""
    is_known = conversion.direction != "other" or conversion.source or conversion.target
    return DIRECTION_WORDS[conversion.direction] + ("" if is_known else ", or which way is not known")


def listed_conversions(trial: Trial) -> dict[str, Conversion]:
    """Every conversion that a trial lists, by its id: those of the kernels, then those of the graphs."""
    found: dict[str, Conversion] = {}
    recorded = trial.kernels.conversions if trial.kernels is not None else ()
    for conversion in (*recorded, *(c for graph in trial.graphs for c in graph.conversions)):
        found.setdefault(conversion.id, conversion)
    return found


def waste_of(trial: Trial) -> Waste | None:
    """What the redundant pairs of a trial cost; None where it has none."""
    if not trial.redundant_pairs:
        return None
    parts = parts_of_pairs(trial.redundant_pairs, listed_conversions(trial).values())
    return Waste(
        pair_count=len(trial.redundant_pairs),
        seconds=_sum_of_all(part.seconds for part in parts),
        exposed_seconds=_sum_of_all(part.exposed_seconds for part in parts),
    )


def _sum_of_all(values: Iterable[Number | None]) -> Number | None:
    """What they add up to; None where one of them is not known."""
    listed = list(values)
    return None if None in listed else sum_known(listed)


def exposed_seconds(trial: Trial) -> float | None:
    """
    The part of the conversions' time in which nothing else ran on the device; None where not known for all.

    What libraries and others left exposed never overlaps, as each ran alone, so the two are added.
    """
    counted = counted_conversions(trial)
    parts = [conversion.exposed_seconds for conversion in counted if conversion.owner != "library"]
    if trial.kernels is not None and any(conversion.owner == "library" for conversion in counted):
        parts.append(trial.kernels.exposed_conversion_seconds)
    return _sum_of_all(parts)
