"""Shows the parts of the time difference between two configurations, as sentences and as a table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from layoutdoctor.diagnosis import Account, AccountRow, Diagnosis, Trial
from layoutdoctor.examination.counts import counted_conversions, launch_count, places_of, sum_seconds
from layoutdoctor.reports.sections.rows import UNKNOWN_CELL, Table, TableRow, tensors_in_short
from layoutdoctor.reports.sections.wording import KERNEL_LENGTH, clean, clean_name, shown_name
from layoutdoctor.units import format_bytes, format_seconds, format_share, sum_if_all_known
from layoutdoctor.words import (
    be,
    count_of,
    distinct,
    joined,
    layout_words,
    line_words,
    listing,
    phrase,
    shape_words,
    shown,
)

MOST_ROWS = 3
_LONGEST = 135
_WORTH_A_SENTENCE = 0.05
"""Smallest share of the difference that a sentence names."""

_KINDS = {
    "conversion": ("layout conversions", "layout conversions"),
    "generated_kernel": ("a slower kernel for {}", "a generated kernel is slower"),
    "layout": ("{} in another layout", "another layout"),
    "implementation": ("{} in other library code", "the library chose other code"),
    "missing_fusion": ("{}, not fused", "not fused"),
    "operation": ("{}", "the same operation"),
    "data_movement": ("data moved by {}", "it moves data and computes nothing"),
    "not_aligned": ("operations without a counterpart", "no counterpart was found"),
    "small": ("{}", "small differences"),
    "around_kernels": ("time around the kernels of library calls", "memory and lookups of the library"),
    "between_kernels": ("gaps between kernels", "Python, guards and launching: no kernel runs"),
    "outside_kernels": ("unrecorded causes", "cause not known"),
}
"""For each kind of row: its words in a sentence, and the reason in the table."""
_OF_CALLS = frozenset({"implementation", "layout", "missing_fusion", "operation"})
"""Kinds whose rows are counted in a sentence: ``8 x conv2d``."""


def account_table(account: Account) -> Table:
    """Returns the parts of a time difference as a table; the title has the whole difference."""
    slower, faster = shown_name(account.slower), shown_name(account.faster)
    difference = signed_seconds(account.slower_seconds - account.faster_seconds)
    heading = f"Why {slower} is slower than {faster}: {difference} of {format_seconds(account.slower_seconds)} per call"
    rows = tuple(TableRow(_cells(row)) for row in account.rows)
    head = ("what", "where", "difference", f"in {slower}", f"in {faster}", "why")
    return Table(head, rows, title=heading)


def table_of_convolutions(account: Account) -> Table:
    """Returns the rows of ``account_of_convolutions``, each named by its module and the shape of its input."""
    whole = account_table(account)
    rows = []
    for row, cells_of_row in zip(account.rows, whole.rows, strict=True):
        *cells, why = cells_of_row.cells[1:]
        rows.append(TableRow((_convolution_name(row), *cells, joined((why, clean(row.detail or "")), ": "))))
    return Table(("convolution", *whole.head[1:]), tuple(rows))


def _convolution_name(row: AccountRow) -> str:
    shape = phrase("{}", row.slower_layout or row.faster_layout, lambda layout: clean_name(shape_words(layout.shape)))
    module = phrase("{}", row.module, clean_name)
    return joined((module or row_name(row), shape, "backward" if row.backward and module else None), ", ")


def why_sentence(diagnosis: Diagnosis) -> str:
    """Says why the default is slower than the recommendation, or what the default converts. Empty if it has not run."""
    trial = diagnosis.measured_trial(diagnosis.baseline_name)
    sides = diagnosis.baseline_name, diagnosis.recommended_name
    account = next((account for account in diagnosis.accounts if (account.slower, account.faster) == sides), None)
    if account is not None and account.rows:
        return account_sentence(account)
    if trial is None or trial.status != "ok":
        return ""
    return joined((conversions_sentence(trial), decision_sentence(trial, in_full=False)))


def account_sentence(account: Account) -> str:
    """
    Names the largest parts of a difference and the rest, so that the parts add up.

    All conversions are one part, and so are all generated kernels that are slower, and rows that a reader could not
    tell apart. A part for which the sentence has no room is in the rest.
    """
    difference = account.slower_seconds - account.faster_seconds
    groups: dict[Hashable, list[AccountRow]] = {}
    for number, row in enumerate(account.rows):
        alike: Hashable = number
        if row.kind in _OF_CALLS:
            alike = row_name(row), _place(row), row.seconds > 0
        elif row.kind in ("conversion", "generated_kernel"):
            alike = row.kind == "generated_kernel" and row.seconds > 0
        groups.setdefault((row.kind, alike), []).append(row)
    costs = [(sum(row.seconds for row in group), group) for group in groups.values()]
    parts: list[str] = []
    rest = difference
    for seconds, group in sorted(costs, key=lambda cost: -cost[0]):
        if seconds <= 0 or seconds < _WORTH_A_SENTENCE * abs(difference) or len(parts) == MOST_ROWS:
            break
        part = f"{format_seconds(seconds)} from {_in_short(group)}"
        if parts and len(", ".join((*parts, part))) > _LONGEST:
            continue
        parts.append(part)
        rest -= seconds
    if abs(rest) >= _WORTH_A_SENTENCE * abs(difference):
        parts.append(f"the rest {signed_seconds(rest)}{_what_takes_longer(account.rows) if rest < 0 else ''}")
    slower = clean_name(shown(account.slower))
    return f"{slower} is slower by {format_seconds(difference)}: {', '.join(parts)}"


def _what_takes_longer(rows: Sequence[AccountRow]) -> str:
    """Names the operation or gap that loses most time in the faster configuration; empty if it has no name."""
    longer: dict[str, float] = {}
    for row in rows:
        if row.seconds < 0 and row.kind != "small":
            longer[row_name(row)] = longer.get(row_name(row), 0.0) - row.seconds
    return f" (less in {clean_name(max(longer, key=lambda name: longer[name]))})" if longer else ""


def _in_short(rows: Sequence[AccountRow]) -> str:
    """Describes rows of one part; names the largest row's place and counts the others, but not those of conversions."""
    ordered = sorted(rows, key=lambda row: -row.seconds)
    row, number = ordered[0], sum(row.count for row in rows)
    words = _KINDS[row.kind][0].format(row_name(row))
    places = distinct(place for one in ordered if one.seconds for place in _places(one))
    if row.kind == "conversion":
        places = places if len(places) == 1 else []
    elif number == 1:
        places = places[:1]
    elif row.kind == "generated_kernel":
        words = "slower generated kernels"
    else:
        words = f"{number} x {words}"
    return f"{words}{phrase(' ({})', listing(map(clean_name, places), 1))}"


def _places(row: AccountRow) -> list[str]:
    """The lines of a row; without lines its module, if that is known."""
    return [line_words(location) for location in row.locations] or [place for place in (_place(row),) if place]


def _place(row: AccountRow) -> str:
    if row.locations:
        return line_words(row.locations[0])
    module = row.module or ""
    return f"module {module}" if module.isdecimal() else module


def conversions_sentence(trial: Trial) -> str:
    """Says what a trial converts per call and the cost, or that no kernels were recorded; empty without conversions."""
    counted = counted_conversions(trial)
    if trial.kernels is None and not trial.is_static:
        return "kernels were not recorded, so conversions are not known"
    if not counted:
        return ""
    seconds, whole = sum_seconds(counted), trial.kernel_seconds
    moved, cost = sum_if_all_known(*(conversion.bytes_moved for conversion in counted)), ""
    if seconds is not None and whole:
        cost = f", {format_share(seconds / whole)} of kernel time"
    elif moved is not None:
        cost = f", {format_bytes(moved)} moved"
    number = launch_count(counted)
    words = f"{listing(tensors_in_short(trial), None)} {be(number)} converted in every call{cost}"
    if not trial.redundant_pairs:
        return words
    lines = distinct(place.location for place in places_of(trial.redundant_pairs))
    there = phrase(" ({})", listing((clean_name(line_words(line)) for line in lines), 1))
    return f"{words}; {count_of(len(trial.redundant_pairs), 'round trip')} whose conversions undo each other{there}"


def decision_sentence(trial: Trial, *, in_full: bool) -> str:
    """
    Says what Inductor decided about layouts, and why; empty if there is nothing to say.

    Args:
        in_full: Whether to speak also of a decision that reaches every convolution.
    """
    found = [(graph.direction, graph.decision) for graph in trial.graphs if graph.decision is not None]
    found = [(direction, card) for direction, card in found if card.convolution_count]
    for direction, card in found:
        ranks = {convolution.rank for convolution in card.convolutions} or {None}
        # Layout optimization changes 2-D convolutions only.
        if card.applied is False and (card.rule == "config-off" or ranks & {2, None}):
            part = "" if direction == "inference" else f" in the {direction}"
            return f"layout optimization is off{part}" + (
                "" if card.rule == "config-off" else f": {clean(card.explanation)}"
            )
    cards = [card for _, card in found]
    count = sum(card.convolution_count for card in cards)
    reached = sum(card.channels_last_convolution_count for card in cards)
    if not cards or (reached == count and not in_full):
        return ""
    ranks = {convolution.rank for card in cards for convolution in card.convolutions}
    why = " (2-D only)" if reached < count and ranks and not ranks & {2, None} else ""
    if in_full and not why:
        why = f": {clean(cards[0].explanation)}"
    return f"layout optimization reaches {reached} of {count_of(count, 'convolution')}{why}"


def row_name(row: AccountRow) -> str:
    """Names the operations of a row, or its kind, in a few words."""
    if row.kind == "small":
        return f"small differences ({clean(row.detail or 'rows')})"
    if row.kind in ("around_kernels", "between_kernels", "outside_kernels", "not_aligned"):
        return _KINDS[row.kind][0]
    operations = listing((clean(name, KERNEL_LENGTH) for name in row.operations), 3) or "an operation"
    return f"{operations} (backward)" if row.backward else operations


def _cells(row: AccountRow) -> tuple[str, ...]:
    why = _KINDS[row.kind][1]
    if row.kind == "layout":
        why = f"{layout_words(row.slower_layout)} against {layout_words(row.faster_layout)}"
    elif row.detail and row.kind in ("conversion", "outside_kernels"):
        why = f"{why}: {row.detail}"
    places = [line_words(location) for location in row.locations] or ([row.module] if row.module else [])
    return (
        f"{row_name(row)}, {row.count} places" if row.count > 1 else row_name(row),
        listing(map(clean_name, dict.fromkeys(places)), 3) or UNKNOWN_CELL,
        signed_seconds(row.seconds),
        *(
            "nothing" if seconds == 0 else phrase("{}", seconds, format_seconds) or UNKNOWN_CELL
            for seconds in (row.slower_seconds, row.faster_seconds)
        ),
        clean(why),
    )


def signed_seconds(seconds: float) -> str:
    """Formats seconds, with a minus sign if they are below zero."""
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)
