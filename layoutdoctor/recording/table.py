"""
Finds and reads the tables of kernels in a text: sums of kernels or operations by name, and lists of kernels.

``nsys stats``, rocprofv3, TraceLens and torch.profiler print such tables. A table of sums has the total time of all
kernels of a name, without order and shapes. A list of launches with their starts is read as a recorded run. The file
may be CSV or text from a terminal: quoted, with the prefix of a logger, with squeezed blanks, or among other output.

Source:
    Reports of ``nsys stats`` 2019 to 2026, rocprofv3, TraceLens 2026; ``key_averages().table()`` of torch 0.4 to 2.13.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.key_averages import KEY_AVERAGES, KeyAverages, totals_below
from layoutdoctor.recording.recording import KernelTotals, Problem
from layoutdoctor.recording.table_numbers import NANOSECONDS, denying, is_number
from layoutdoctor.recording.table_rows import CELL_GAP, LAYOUTS, TextTable, cells_in

if TYPE_CHECKING:
    from layoutdoctor.recording.files import TraceFile
    from layoutdoctor.recording.recording import RecordedTrace

_LONGEST_LINE = 1 << 17
"""Largest number of characters that are kept of a line; the csv module takes no longer field."""

_LONGEST_TITLES = 2_000  # a longer line is not searched for titles with single blanks between them

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TITLE = re.compile(r"^(.*?)\s*\(([^()]*)\)(_\w+)?$")
_QUOTED = re.compile(r"^(?:\s{0,3}>)+ ?")
_COLUMN = (
    r"(?:Overload Name|Name|(?:Self )?[A-Z]\w+ (?:total %|time total|time avg|total|time|Mem|%)|Self [A-Z]\w+|"
    r"(?:# of |Number of )?Calls|Node ID|Input Shapes|Source Location|Total [KMGTP]?FLOPs|Time ?\(%\)|"
    r"Instances|(?:Total Time|Avg|Med|Min|Max|StdDev)(?: \(\w+\))?|Average|Minimum|Maximum|Category|Operation|"
    r"GridXYZ|BlockXYZ)"
)
_SQUEEZED = re.compile(rf"(?:{_COLUMN}\s+)+{_COLUMN}\s*$")
"""Titles with single blanks between them, as in a web page that does not show the text as code."""
_COLUMNS = re.compile(_COLUMN)
_COLORS = re.compile(r"\x1b\[[\d;]{0,20}m")
_DOTS = re.compile(r"(?=.*(?:\.\.|[\u2026\u22ee]))[\s|,;.\u2026\u22ee\[\]]+$|\s*<snip>\s*$")
"""A line of dots in place of rows that somebody left out."""
_LONGEST_HEADING = 60


def read_kernel_tables(file: TraceFile, *, only_first: bool = False) -> list[KernelTotals | RecordedTrace]:
    """
    Reads the tables of kernels in a file.

    A table of sums has one row per name and operation, in the order of the file. A list of launches becomes a recorded
    run. Only the best kind of table is read: tables with kernels before tables of operations, in the order of
    ``LAYOUTS``. If one run has several tables, only the longest is read. All other tables are only counted.

    Raises:
        TraceError: The file cannot be opened or read, is too large, or has no table of kernels that can be read.
    """
    tables = list(_tables(_lines(codecs.iterdecode(file.pieces(), text_encoding(file.head()), "replace"))))
    if not tables:
        raise TraceError(
            f"cannot read {str(file.path)!r}: it has no table of kernels; expected the CSV of nsys stats --report "
            "cuda_gpu_kern_sum --format csv, of rocprofv3, of TraceLens, or the text of torch.profiler's "
            "key_averages().table() of a GPU run"
        )
    for table in tables:
        table.decide()
    # The first table may not be the best: torch.profiler may cut off the kernels, rocprofv3 begins with other tables.
    best = min(tables, key=_rank)
    chosen = _of_different_runs([table for table in tables if _rank(table) == _rank(best)])
    for table in chosen:
        _refuse_what_cannot_be_read(str(file.path), table)
    if only_first:
        del chosen[1:]
    found = [_result(table, is_cut=file.is_cut) for table in chosen]
    if further := len(tables) - len(chosen):
        found[0].problems.append(Problem(FURTHER, further))
    return found


FURTHER = "further tables of kernels in the same file, which were not read"


def _rank(table: TextTable) -> tuple[bool, bool, int]:
    kinds = (*LAYOUTS, KEY_AVERAGES)
    return (not table.has_kernels, not (table.row_count or table.unread_count), kinds.index(table.layout))


def _of_different_runs(tables: Sequence[TextTable]) -> list[TextTable]:
    """Returns the longest table of each run. Tables are of the same run if their totals, or their sums, are equal."""
    by_run: dict[object, TextTable] = {}
    for number, table in enumerate(tables):
        run: object = number
        if isinstance(table, KeyAverages) and table.totals:
            run = tuple(sorted(table.totals.items()))
        elif table.spent:
            run = (sum(row.count for row in table.spent), sum(row.nanoseconds for row in table.spent))
        known = by_run.setdefault(run, table)
        if table.row_count > known.row_count:
            by_run[run] = table
    return list(by_run.values())


def _refuse_what_cannot_be_read(name: str, table: TextTable) -> None:
    advice = "write it as CSV, with a point before decimals"
    if table.layout.source.startswith("nsys"):
        advice = "write it with LC_ALL=C nsys stats --report cuda_gpu_kern_sum --format csv"
    elif isinstance(table, KeyAverages):
        advice = "write it into a file: print(table, file=open('table.txt', 'w'))"
    if table.is_ambiguous:
        raise TraceError(
            f"cannot read {name!r}: the points and commas in its numbers may separate thousands or decimals; "
            f"expected columns that show which is true; {advice}"
        )
    if table.unread_count and not table.row_count:
        raise TraceError(
            f"cannot read {name!r}: the numbers could not be read in any row of its table; "
            f"the first row is {table.first_unread.strip()[:80]!r}; expected columns that do not run together; "
            f"{advice}"
        )


def _result(table: TextTable, *, is_cut: bool) -> KernelTotals | RecordedTrace:
    found = table.result()
    if isinstance(found, KernelTotals):
        found.heading = table.heading
    counts = {
        "rows of the kernel table that could not be read": table.unread_count,
        "rows of the table whose time and percentage contradict each other": len(denying(table.spent)),
        "rows of the table were left out and replaced by dots": int(table.is_elided),
        "the kernel table has no rows": int(not (table.row_count or table.unread_count)),
        "the compressed file is cut off": int(is_cut),
    }
    found.problems = [Problem(what, count) for what, count in counts.items() if count]
    return found


def has_kernel_table(text: str) -> bool:
    """Whether a text has the title line of a table that can be read here."""
    return any(True for _ in _tables(text.splitlines()))


def text_encoding(head: bytes) -> str:
    """Returns the encoding by the byte order mark; UTF-8 if there is no mark. PowerShell's ``>`` writes UTF-16."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a text without their ends; a line that is too long for a table is cut."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest[:_LONGEST_LINE] + piece).split("\n")
        yield from (line[:_LONGEST_LINE].rstrip("\r") for line in whole)
    yield rest[:_LONGEST_LINE]


def _tables(lines: Iterable[str]) -> Iterator[TextTable]:
    """Yields the tables in a text; a table is complete when the next table is yielded or the text ends."""
    here: TextTable | None = None
    last: TextTable | None = None
    was_blank, above = False, ""
    for raw in lines:
        line = _QUOTED.sub("", _COLORS.sub("", raw))
        is_rule, is_framed = _is_rule(line), not line.strip(" +-|:=")
        is_blank = not line.strip() or line.lstrip().startswith(("```", "~~~"))
        begun = None if is_rule or is_framed or is_blank else _table_at(line)
        if begun is not None:
            begun.heading, above = _heading(above[begun.offset :]), ""
            here = last = begun
            yield begun
        elif totals := totals_below(line):
            if isinstance(last, KeyAverages):
                last.totals = totals | last.totals
            here = None
        elif is_rule and here is not None and here.separator == " ":
            if here.has_rows:
                here = None
            else:
                here.spans = [match.span() for match in re.finditer(r"-+", line[here.offset :])]
        elif is_blank:
            # In a table of torch.profiler, a blank line ends each stack; it does not end the table.
            here = here if isinstance(here, KeyAverages) else None
        elif here is not None and _DOTS.match(line):
            here.is_elided = True
        elif here is not None and not is_framed and not here.take(line):
            here = None if was_blank and "source location" not in here.titles else _after(line, here)
        if here is None and not (is_blank or is_rule or is_framed):
            above = line
        was_blank = is_blank


def _heading(line: str) -> str:
    """Returns the text of a line above a table if it can be the table's name; else an empty text."""
    text = line.strip(" \t#*=-:_`>")
    return "" if len(text) > _LONGEST_HEADING or "[" in text or totals_below(line) else text


def _is_rule(line: str) -> bool:
    """Whether a line ends in several groups of dashes, which torch.profiler and others print as a horizontal rule."""
    strokes = line[len(line.rstrip("- \t")) :].split()
    return len(strokes) > 1 and all(len(stroke) > 1 for stroke in strokes)


def _after(line: str, table: TextTable) -> TextTable | None:
    """Returns the table if it may go on after a line that is no row, else None. Counts what may be a damaged row."""
    cells = cells_in(line, table.separator)
    is_other = _are_titles(cells) or (table.separator in ",;" and len(cells) == 1)
    if is_other and not any(map(is_number, cells)):
        return None
    is_stack = "source location" in table.titles and len(CELL_GAP.split(line.strip())) == 1
    numbers = [word for word in line.split() if is_number(word.rstrip(","))]
    is_printed = table.separator == " " and len(numbers) < _LEAST_NUMBERS
    if not (is_stack or is_printed):
        table.unread(line)
    return table


def _table_at(line: str) -> TextTable | None:
    """Returns the table that a line of titles begins; None if the line begins no table of kernels or operations."""
    if not _MAY_BE_TITLES.search(line):
        return None
    if line.lstrip().startswith("|") or line.count(" | ") > 2:  # a table copied from GitHub has no outer bars
        return _table_of(cells_in(line, "|"), "|")
    for separator in ",;":
        if separator in line and (found := _table_of(cells_in(line, separator), separator)) is not None:
            return found
    if len(line) < _LONGEST_TITLES and (squeezed := _SQUEEZED.search(line)) is not None:
        offset = len(line[: squeezed.start()].rstrip())
        if (found := _table_of(_COLUMNS.findall(squeezed[0]), " ", offset)) is not None:
            return found
    return _table_of(cells_in(line, " "), " ")


_LEAST_NUMBERS = 3  # in a row; a line with fewer numbers was printed by a program in between
_MAY_BE_TITLES = re.compile(r"(?:name|operation)\b", re.IGNORECASE)
_SAME_TITLES = {"number of calls": "# of calls", "calls": "# of calls"}


def _table_of(cells: Sequence[str], separator: str, offset: int = 0) -> TextTable | None:
    lower = [cell.lower() for cell in cells]
    if "name" in lower and not {"self cpu", "self cpu total", "cpu total"}.isdisjoint(lower):
        titles = [re.sub(r"^(self \w+) total", r"\1", _SAME_TITLES.get(title, title)) for title in lower]
        is_whole = "# of calls" in titles and len(set(titles)) == len(titles)
        return KeyAverages(titles, separator, offset) if is_whole else None
    titles, units = [], {}
    for cell in lower:
        found = _TITLE.match(cell)
        title, unit = (found[1] + (found[3] or ""), found[2]) if found else (cell, "")
        # "Time (%)" keeps its unit, so that it is not taken for "Time".
        titles.append(title if unit != "%" and title not in titles else cell)
        if unit in NANOSECONDS:
            units[titles[-1]] = unit
    layout = next((layout for layout in LAYOUTS if layout.fits(titles)), None)
    return None if layout is None else TextTable(layout, titles, units, separator, offset)


def _are_titles(cells: Sequence[str]) -> bool:
    """Whether cells are titles of columns: at least one of them has a unit of time or a percent sign."""
    found = (_TITLE.match(cell.lower()) for cell in cells)
    return any(title is not None and (title[2] in NANOSECONDS or title[2] == "%") for title in found)
