"""Makes the report of a scan: sums of conversions, reasons for waiting, unusual ranks, and the worst files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.rows import UNKNOWN_CELL, Overview, Table, TableRow
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_bytes, format_seconds, format_share
from layoutdoctor.words import NOT_RECORDED, count_of, joined, listing

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.scan import Dimension, Scan, ScanTotal

    _Sum = tuple[tuple[str, ...], ScanTotal]

_MOST_OF_ONE = 3
_MOST_ROWS = 5
_MOST_IN_FULL = 1_000
_MOST_NAMED = 5
_DIMENSIONS: tuple[Dimension, ...] = ("kernel", "operation", "module", "shape", "step", "device")
_MOST_PLACES: Mapping[Dimension, int] = {"kernel": 2, "operation": 2, "module": 3, "shape": 3}
_RULES: Mapping[Dimension, str] = {"rule": "", "aside": " (not counted)"}
_OUTLIER_SPREADS = 5
_OUTLIER_SHARE = 0.1
_FEWEST_RANKS = 4


def build_scan_view(scan: Scan, *, in_full: bool) -> Overview:
    """
    Returns the report of a scan.

    Args:
        in_full: Whether to return every table; otherwise one screen, whatever the number of files.
    """
    whole = sum(file.kernel_nanoseconds for file in scan.examined)
    by_rank: Counter[int] = Counter()
    for file in scan.examined:
        if file.rank is not None:
            by_rank[file.rank] += file.conversion_nanoseconds
    failed = [TableRow((clean(file.name, 60), clean(file.failure or "", 300))) for file in scan.failed]
    tables = (
        _sums("Each conversion, by the first rule that finds it", ("by rule",), _by_rule(scan), whole),
        *(_by_dimension(scan, whole) if in_full else [_by_place(scan, whole)]),
        _files_table(scan, _MOST_IN_FULL if in_full else _MOST_ROWS),
        Table(("file", "why"), tuple(failed), "Not examined").first(_MOST_IN_FULL if in_full else _MOST_OF_ONE),
    )
    return Overview(
        title=_title(scan, len(by_rank)),
        headline=_headline(scan, whole),
        lines=tuple(_lines(scan, by_rank)),
        tables=tuple(table for table in tables if table.rows),
    )


def _title(scan: Scan, rank_count: int) -> tuple[str, ...]:
    devices = sorted({file.device_name for file in scan.examined if file.device_name is not None})
    size = sum(file.file_bytes or 0 for file in scan.files)
    parts = ["layoutdoctor scan", count_of(len(scan.files), "file") + (f" ({format_bytes(size)})" if size else "")]
    parts += [count_of(rank_count, "rank")] if rank_count else []
    return (*parts, *([clean(listing(devices, _MOST_OF_ONE), 120)] if devices else []))


def _headline(scan: Scan, whole: int) -> str:
    examined = scan.examined
    files = count_of(len(examined), "file")
    if not examined:
        return f"None of {count_of(len(scan.files), 'file')} could be examined."
    if not any(file.kernel_count for file in examined):
        if count := sum(file.conversion_count for file in examined):
            return f"{count_of(count, 'conversion')} in compiled code of {files}; no kernel was recorded, so no time."
        return f"No kernel was recorded in any of {files}, so nothing can be said of layouts."
    spent = sum(file.conversion_nanoseconds for file in examined)
    unknown = sum(file.undecided_nanoseconds for file in examined)
    more = f"; another {_time(unknown)} may be conversions" if unknown else ""
    if not spent:
        return f"No layout conversion in {_time(whole)} of kernel time of {files}{more}."
    having = sum(file.conversion_count > 0 for file in examined)
    share = format_share(spent / whole)
    return (
        f"Layout conversions take {_time(spent)} of {_time(whole)} kernel time ({share}), in {having} of {files}{more}."
    )


def _lines(scan: Scan, by_rank: Mapping[int, int]) -> Iterator[str]:
    files = [file for file in scan.examined if file.waiting is not None and file.waiting.span_seconds]
    known = [file.waiting for file in files if file.waiting is not None]
    if known:
        bound = sum(waiting.conversion_bound_seconds * (waiting.step_count or 1) for waiting in known)
        span = sum(waiting.span_seconds for waiting in known)
        busy = sum(waiting.busy_seconds for waiting in known)
        if bound:
            more = " and kernels that may convert" if any(file.undecided_nanoseconds for file in files) else ""
            more += ", as far as recorded," if any(file.lacks for file in files) else ""
            yield (
                f"Conversions{more} cost at most {format_seconds(bound)} of {format_seconds(span)} from the first to "
                f"the last kernel ({format_share(min(bound / span, 1.0))})"
            )
        parts = {"collectives": sum(waiting.collective_seconds for waiting in known)}
        parts["copies"] = sum(waiting.copy_seconds for waiting in known)
        shown = ", ".join(f"{name} {format_seconds(amount)}" for name, amount in parts.items() if amount)
        yield f"Devices were busy {format_share(min(busy / span, 1.0))} of the time" + (f"; {shown}" if shown else "")
        waits = Counter(waiting.waits_for for waiting in known)
        named = [f"the {name} in {count_of(waits[name], 'file')}" for name in ("device", "host") if waits[name]]
        if named:
            yield f"Runs waited for {listing([*named, *([f'neither in {waits[None]}'] if waits[None] else [])])}"
    yield from _rank_lines(dict(sorted(by_rank.items())))


def _rank_lines(spent: Mapping[int, int]) -> Iterator[str]:
    if len(spent) < 2:
        return
    least, most = min(spent, key=lambda rank: (spent[rank], rank)), max(spent, key=lambda rank: (spent[rank], -rank))
    middle = _time(median(spent.values()))
    yield (
        f"By rank: least {_time(spent[least])} (rank {least}), median {middle}, most {_time(spent[most])} (rank {most})"
    )
    outliers = outlying(spent)
    if outliers:
        shown = listing([f"rank {rank} ({_time(spent[rank])})" for rank in outliers], _MOST_NAMED)
        yield f"Far from the others: {shown}"


def outlying(values: Mapping[int, int]) -> list[int]:
    """
    Returns the ranks that differ from the median by over five median deviations and also by over a tenth of the median.

    The farthest comes first. Empty for fewer than ``_FEWEST_RANKS`` ranks.
    """
    if len(values) < _FEWEST_RANKS:
        return []
    middle = median(values.values())
    spread = median(abs(value - middle) for value in values.values())
    bound = max(_OUTLIER_SPREADS * spread, _OUTLIER_SHARE * middle)
    far = [rank for rank, value in values.items() if abs(value - middle) > bound]
    return sorted(far, key=lambda rank: (-abs(values[rank] - middle), rank))


def _largest(scan: Scan, dimension: Dimension) -> list[tuple[str, ScanTotal]]:
    totals = scan.totals.get(dimension, {})
    return sorted(totals.items(), key=lambda entry: (-entry[1].nanoseconds, entry[0]))


def _sums(title: str, heads: tuple[str, ...], sums: Iterable[_Sum], whole: int, *, is_long: bool = False) -> Table:
    """Makes a table of sums: each row has the names of a sum, its numbers, and its share of all kernel time."""
    rows = tuple(
        TableRow((*names, str(one.file_count), str(one.count), _time(one.nanoseconds), _share(one.nanoseconds, whole)))
        for names, one in sums
    )
    return Table((*heads, "files", "conversions", "time", "of kernels"), rows, title, is_long).first(_MOST_IN_FULL)


def _by_rule(scan: Scan) -> Iterator[_Sum]:
    names = {rule.code: rule.name for rule in ALL_RULES}
    for dimension, note in _RULES.items():
        for code, total in _largest(scan, dimension):
            yield ((joined((code, names.get(code)), " ") or "named by no rule") + note,), total


def _by_place(scan: Scan, whole: int) -> Table:
    """Makes one table of the largest totals of each dimension."""
    sums = [
        ((clean(name, 60), dimension), total)
        for dimension, most in _MOST_PLACES.items()
        for name, total in [entry for entry in _largest(scan, dimension) if entry[0]][:most]
    ]
    return _sums("Where they come from", ("most", "what"), sums, whole)


def _by_dimension(scan: Scan, whole: int) -> Iterator[Table]:
    for dimension in _DIMENSIONS:
        sums = [((clean_name(name) or NOT_RECORDED,), total) for name, total in _largest(scan, dimension)]
        yield _sums(f"By {dimension}", (dimension,), sums, whole, is_long=True)


def _files_table(scan: Scan, most: int) -> Table:
    worst = sorted(scan.examined, key=lambda file: (-file.conversion_nanoseconds, file.name))
    rows = [
        TableRow(
            (
                clean(file.name, 80),
                UNKNOWN_CELL if file.rank is None else str(file.rank),
                str(file.conversion_count),
                _time(file.conversion_nanoseconds),
                _share(file.conversion_nanoseconds, file.kernel_nanoseconds),
                _time(file.undecided_nanoseconds) if file.undecided_nanoseconds else UNKNOWN_CELL,
            )
        )
        for file in worst
        if file.conversion_nanoseconds or most > _MOST_ROWS
    ]
    head = ("file", "rank", "conversions", "time", "of kernels", "may convert")
    return Table(head, tuple(rows), "Worst files first").first(most)


def _share(nanoseconds: int, whole: int) -> str:
    return format_share(nanoseconds / whole) if whole else UNKNOWN_CELL


def _time(nanoseconds: float) -> str:
    return format_seconds(nanoseconds / NANOSECONDS_PER_SECOND)
