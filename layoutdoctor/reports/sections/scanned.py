"""The report of a scan: the sum, what the runs waited for, ranks far from the others, the worst files."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.rows import UNKNOWN, Overview, Table, TableRow
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_bytes, format_seconds, format_share
from layoutdoctor.words import count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.scan import Dimension, Scan, ScannedFile, ScanTotal

_MOST_OF_ONE = 3
_MOST_ROWS = 5
_MOST_IN_FULL = 1_000
_MOST_NAMED = 5
_DIMENSIONS: tuple[Dimension, ...] = ("kernel", "operation", "module", "shape", "step", "device")
_MOST_PLACES: Mapping[Dimension, int] = {"kernel": 2, "operation": 2, "module": 3, "shape": 3}
_OUTLIER_SPREADS = 5
_OUTLIER_SHARE = 0.1
_FEWEST_RANKS = 4


def build_scan_view(scan: Scan, *, in_full: bool) -> Overview:
    """
    The report of a scan.

    Args:
        in_full: Every table; else one screen, whatever the number of files.
    """
    whole = sum(file.kernel_nanoseconds for file in scan.examined)
    by_rank = _by_rank(scan)
    tables = [_rules_table(scan, whole)]
    if in_full:
        tables += [_dimension_table(scan, dimension, whole) for dimension in _DIMENSIONS]
        tables.append(_ranks_table(by_rank))
    else:
        tables.append(_places_table(scan, whole))
    tables += [_files_table(scan, _MOST_IN_FULL if in_full else _MOST_ROWS)]
    tables += [_failed_table(scan, _MOST_IN_FULL if in_full else _MOST_OF_ONE)]
    return Overview(
        title=_title(scan, by_rank),
        headline=_headline(scan, whole),
        lines=tuple(_lines(scan, by_rank)),
        tables=tuple(table for table in tables if table.rows),
        remarks=(),
    )


def _title(scan: Scan, by_rank: Mapping[int, Sequence[ScannedFile]]) -> tuple[str, ...]:
    devices = sorted({file.device_name for file in scan.examined if file.device_name is not None})
    size = sum(file.file_bytes or 0 for file in scan.files)
    parts = ["layoutdoctor scan", count_of(len(scan.files), "file") + (f" ({format_bytes(size)})" if size else "")]
    if by_rank:
        parts.append(count_of(len(by_rank), "rank"))
    return (*parts, *([clean(listing(devices, _MOST_OF_ONE), 120)] if devices else []))


def _headline(scan: Scan, whole: int) -> str:
    examined = scan.examined
    if not examined:
        return f"None of {count_of(len(scan.files), 'file')} could be examined."
    if not any(file.kernel_count for file in examined):
        return f"No kernel was recorded in any of {count_of(len(examined), 'file')}, so nothing can be said of layouts."
    spent = sum(file.conversion_nanoseconds for file in examined)
    unknown = sum(file.undecided_nanoseconds for file in examined)
    having = sum(file.conversion_count > 0 for file in examined)
    more = f"; {_time(unknown)} more may be" if unknown else ""
    if not spent:
        return f"No layout conversion in {_time(whole)} of kernel time of {count_of(len(examined), 'file')}{more}."
    return (
        f"Layout conversions take {_time(spent)} of {_time(whole)} kernel time ({format_share(spent / whole)}), in "
        f"{having} of {count_of(len(examined), 'file')}{more}."
    )


def _lines(scan: Scan, by_rank: Mapping[int, Sequence[ScannedFile]]) -> Iterator[str]:
    known = [file for file in scan.examined if file.span_nanoseconds and file.bound_nanoseconds is not None]
    if known:
        bound = sum((file.bound_nanoseconds or 0) * (file.step_count or 1) for file in known)
        span = sum(file.span_nanoseconds or 0 for file in known)
        busy = sum(file.busy_nanoseconds or 0 for file in known)
        if bound:
            yield (
                f"They cost at most {_time(bound)} of {_time(span)} from the first to the last kernel "
                f"({format_share(min(bound / span, 1.0))}): when nothing else ran"
            )
        parts = {"collectives": sum(file.collective_nanoseconds or 0 for file in known)}
        parts["copies"] = sum(file.copy_nanoseconds or 0 for file in known)
        shown = ", ".join(f"{name} {_time(amount)}" for name, amount in parts.items() if amount)
        yield f"Devices were busy {format_share(min(busy / span, 1.0))} of the time" + (f"; {shown}" if shown else "")
        waits = Counter(file.waits_for for file in known)
        named = [f"the {name} in {waits[name]}" for name in ("device", "host") if waits[name]]
        if named:
            named += [f"neither for sure in {waits[None]}"] if waits[None] else []
            yield f"Runs waited for {listing(named, 3)}"
    yield from _rank_lines(by_rank)


def _rank_lines(by_rank: Mapping[int, Sequence[ScannedFile]]) -> Iterator[str]:
    spent = {rank: _spent(files) for rank, files in by_rank.items()}
    if len(spent) < 2:
        return
    least, most = min(spent, key=lambda rank: (spent[rank], rank)), max(spent, key=lambda rank: (spent[rank], -rank))
    middle = median(spent.values())
    yield (
        f"By rank: least {_time(spent[least])} (rank {least}), median {_time(middle)}, most {_time(spent[most])} "
        f"(rank {most})"
    )
    outliers = outlying(spent)
    if outliers:
        shown = listing([f"rank {rank} ({_time(spent[rank])})" for rank in outliers], _MOST_NAMED)
        yield f"Far from the others: {shown}"


def outlying(values: Mapping[int, int]) -> list[int]:
    """Ranks more than five times the median deviation, and a tenth, from the median; the farthest first."""
    if len(values) < _FEWEST_RANKS:
        return []
    middle = median(values.values())
    spread = median(abs(value - middle) for value in values.values())
    bound = max(_OUTLIER_SPREADS * spread, _OUTLIER_SHARE * middle)
    far = [rank for rank, value in values.items() if abs(value - middle) > bound]
    return sorted(far, key=lambda rank: (-abs(values[rank] - middle), rank))


def _by_rank(scan: Scan) -> dict[int, list[ScannedFile]]:
    ranks: dict[int, list[ScannedFile]] = {}
    for file in scan.examined:
        if file.rank is not None:
            ranks.setdefault(file.rank, []).append(file)
    return dict(sorted(ranks.items()))


def _spent(files: Sequence[ScannedFile]) -> int:
    return sum(file.conversion_nanoseconds for file in files)


def _rules_table(scan: Scan, whole: int) -> Table:
    names = {rule.code: rule.name for rule in ALL_RULES}
    totals = [(code, total, "") for code, total in _largest(scan, "rule")]
    totals += [(code, total, " (not counted)") for code, total in _largest(scan, "aside")]
    rows = []
    for code, total, note in totals:
        name = (joined((code, names.get(code)), " ") or "named by no rule") + note
        rows.append(TableRow((name, str(total.file_count), *_amounts(total, whole))))
    head = ("by rule", "files", "conversions", "time", "of kernels")
    return Table(head, tuple(rows), title="Each conversion, by the first rule that finds it")


def _amounts(total: ScanTotal, whole: int) -> tuple[str, str, str]:
    return (str(total.count), _time(total.nanoseconds), _share(total.nanoseconds, whole))


def _largest(scan: Scan, dimension: Dimension) -> list[tuple[str, ScanTotal]]:
    totals = scan.totals.get(dimension, {})
    return sorted(totals.items(), key=lambda entry: (-entry[1].nanoseconds, entry[0]))


def _places_table(scan: Scan, whole: int) -> Table:
    """The largest of each dimension, in one table."""
    rows = []
    for dimension, most in _MOST_PLACES.items():
        known = [(name, total) for name, total in _largest(scan, dimension) if name]
        for name, total in known[:most]:
            rows.append(TableRow((clean(name, 60), dimension, str(total.file_count), *_amounts(total, whole))))
    return Table(
        ("most", "what", "files", "conversions", "time", "of kernels"), tuple(rows), title="Where they come from"
    )


def _dimension_table(scan: Scan, dimension: Dimension, whole: int) -> Table:
    totals = _largest(scan, dimension)
    rows = (
        TableRow((clean_name(name) or "not recorded", str(total.file_count), *_amounts(total, whole)))
        for name, total in totals[:_MOST_IN_FULL]
    )
    return Table(
        (dimension, "files", "conversions", "time", "of kernels"),
        tuple(rows),
        title=f"By {dimension}",
        is_long=True,
        left_out=max(0, len(totals) - _MOST_IN_FULL),
    )


def _ranks_table(by_rank: Mapping[int, Sequence[ScannedFile]]) -> Table:
    rows = [(_spent(files), rank, files) for rank, files in by_rank.items()]
    rows.sort(key=lambda row: (-row[0], row[1]))
    return Table(
        ("rank", "files", "conversions", "time", "of kernels"),
        tuple(
            TableRow(
                (
                    str(rank),
                    str(len(files)),
                    str(sum(file.conversion_count for file in files)),
                    _time(spent),
                    _share(spent, sum(file.kernel_nanoseconds for file in files)),
                )
            )
            for spent, rank, files in rows[:_MOST_IN_FULL]
        ),
        title="By rank",
        is_long=True,
        left_out=max(0, len(rows) - _MOST_IN_FULL),
    )


def _files_table(scan: Scan, most: int) -> Table:
    worst = sorted(scan.examined, key=lambda file: (-file.conversion_nanoseconds, file.name))
    worst = [file for file in worst if file.conversion_nanoseconds or most > _MOST_ROWS]
    rows = tuple(
        TableRow(
            (
                clean(file.name, 80),
                UNKNOWN if file.rank is None else str(file.rank),
                str(file.conversion_count),
                _time(file.conversion_nanoseconds),
                _share(file.conversion_nanoseconds, file.kernel_nanoseconds),
                _time(file.undecided_nanoseconds) if file.undecided_nanoseconds else UNKNOWN,
            )
        )
        for file in worst[:most]
    )
    head = ("file", "rank", "conversions", "time", "of kernels", "may convert")
    return Table(head, rows, title="Worst files first", left_out=max(0, len(worst) - most))


def _failed_table(scan: Scan, most: int) -> Table:
    rows = tuple(TableRow((clean(file.name, 60), clean(file.failure or "", 300))) for file in scan.failed[:most])
    return Table(("file", "why"), rows, title="Not examined", left_out=max(0, len(scan.failed) - most))


def _time(nanoseconds: float) -> str:
    return format_seconds(nanoseconds / NANOSECONDS_PER_SECOND)


def _share(part: int, whole: int) -> str:
    return format_share(part / whole) if whole else UNKNOWN
