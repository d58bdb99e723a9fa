"""``rank``: the convolutions of a saved diagnosis by what their layout costs. No model, no torch and no GPU."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from layoutdoctor.commands.output import for_others
from layoutdoctor.commands.streams import print_text, terminal_width
from layoutdoctor.diagnosis.record import Record
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.examination.ranking import Ranked, rank
from layoutdoctor.reports.sections.rows import UNKNOWN
from layoutdoctor.reports.sections.wording import clean, clean_name, shown_name
from layoutdoctor.units import format_seconds
from layoutdoctor.words import joined, line_words, listing, shape_words

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.examination.ranking import Spent

_COLUMNS = ("module", "line", "direction", "count", "shape")
_SPENT = ("seconds", "conversion_seconds", "conversion_count", "implementations")
_MOST_ROWS = 30


class Ranking(Record, frozen=True, kw_only=True):
    """Convolutions in two configurations, those that lose most in the first one first."""

    first: str
    second: str
    rows: tuple[Ranked, ...]


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "The convolutions of a saved diagnosis, forward and backward apart, by the time that one configuration loses "
        "against another: with the time of their conversions, shape, line and implementation. What "
        "the same kernels lose or gain is scatter. Needs no torch."
    )
    parser.epilog = "Exit status: 0 done; 2 wrong usage; 3 the file could not be read."
    parser.add_argument("saved", metavar="SAVED.json", help="what --output SAVED.json wrote")
    parser.add_argument("--of", metavar="NAME", help="the configuration to rank (default: the baseline)")
    parser.add_argument(
        "--against", metavar="NAME", help="the other one (default: the recommended one, or the fastest)"
    )
    parser.add_argument(
        "--format", choices=("csv", "json", "markdown", "text"), default="text", help="what is printed (default: text)"
    )
    parser.add_argument("--redact", action="store_true", help="replace your own names of modules and files")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    diagnosis = for_others(load(arguments.saved), redact_names=arguments.redact)
    first, second, rows = rank(diagnosis, arguments.of, arguments.against)
    ranking = Ranking(first=first, second=second, rows=tuple(rows))
    if arguments.format == "json":
        print_text(to_json(ranking).decode() + "\n")
    elif arguments.format == "csv":
        print_text(_as_csv(ranking))
    else:
        print_text(_as_table(ranking, arguments.format))
    return 0


def _as_csv(ranking: Ranking) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"{name}_{column}" for name in (ranking.first, ranking.second) for column in _SPENT)])
    for row in ranking.rows:
        line = clean_name(str(row.location)) if row.location is not None else ""
        spent = [cell for side in (row.first, row.second) for cell in _csv_cells(side)]
        writer.writerow([clean_name(row.module or ""), line, _direction(row), row.count, _shape(row), *spent])
    return stream.getvalue()


def _csv_cells(spent: Spent | None) -> tuple[object, ...]:
    if spent is None:
        return ("",) * len(_SPENT)
    words = clean(" ".join(spent.implementations))
    return (spent.seconds, spent.conversion_seconds, spent.conversion_count, words)


def _as_table(ranking: Ranking, report_format: str) -> str:
    from layoutdoctor.reports.markdown import table_of
    from layoutdoctor.reports.sections.rows import Table, TableRow
    from layoutdoctor.reports.text import plain_table

    head = ("convolution", "direction", "result", shown_name(ranking.first), shown_name(ranking.second), "loses")
    rows = (
        (_name(row), _direction(row), _shape(row), _side(row.first), _side(row.second), _loss(row))
        for row in ranking.rows
    )
    table = Table(head, tuple(map(TableRow, rows))).first(_MOST_ROWS)
    if report_format == "markdown":
        return table_of(table) + "\n"
    more = f"and {table.left_out} more: --format csv has all\n" if table.left_out else ""
    return f"{plain_table(table, terminal_width() or 120)}\n{more}"


def _name(row: Ranked) -> str:
    place = line_words(row.location) if row.location is not None else None
    return clean(joined((row.module, place, f"{row.count} of them" if row.count > 1 else None), ", ")) or UNKNOWN


def _direction(row: Ranked) -> str:
    return "backward" if row.backward else "forward"


def _shape(row: Ranked) -> str:
    return clean_name(shape_words(row.shape)) if row.shape is not None else UNKNOWN


def _side(spent: Spent | None) -> str:
    if spent is None or spent.seconds is None:
        return "not recorded"
    converting = f" + {format_seconds(spent.conversion_seconds or 0.0)} converting" if spent.conversion_count else ""
    return joined((format_seconds(spent.seconds) + converting, clean(listing(spent.implementations, 2), 40)), ", ")


def _loss(row: Ranked) -> str:
    if row.second is None or row.second.whole is None or row.first.whole is None:
        return UNKNOWN
    ran = [(spent.implementations, spent.conversion_count) for spent in (row.first, row.second)]
    words = ", same kernels" if ran[0] == ran[1] and ran[0][0] else ""  # then it is scatter
    return f"{'-' if row.loss < 0 else ''}{format_seconds(abs(row.loss))}{words}"
