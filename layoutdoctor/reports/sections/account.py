"""Where a difference between two configurations goes, as sentences and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import counted_conversions, launch_count, sum_seconds
from layoutdoctor.reports.sections.rows import UNKNOWN, Table, TableRow, tensors_in_short
from layoutdoctor.reports.sections.wording import KERNEL_LENGTH, clean, clean_name, shown_name, waste_of
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import be, count_of, layout_words, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Account, AccountRow, Diagnosis, Trial

MOST_ROWS = 3
_LONGEST = 125
_WORTH_A_SENTENCE = 0.05
"""Of the difference."""

_KIND_WORDS = {
    "conversion": "layout conversions",
    "generated_kernel": "a generated kernel is slower",
    "layout": "another layout",
    "implementation": "the library chose other code",
    "missing_fusion": "not fused",
    "operation": "the same operation",
    "not_aligned": "no counterpart was found",
    "small": "small differences",
    "outside_kernels": "cause not known",
}


@dataclass(frozen=True, slots=True)
class AccountView:
    """
    One account, ready to be laid out.

    Attributes:
        heading: Which difference, and how much.
    """

    heading: str
    table: Table


def build_accounts(diagnosis: Diagnosis, most: int | None = None) -> tuple[AccountView, ...]:
    """
    The accounts of a diagnosis, in its order.

    Args:
        most: Rows of each table, those that contribute most; None for all.
    """
    return tuple(account_view(account, most) for account in diagnosis.accounts)


def account_view(account: Account, most: int | None = None) -> AccountView:
    """An account in words, as ``build_accounts`` has it."""
    slower, faster = shown_name(account.slower), shown_name(account.faster)
    heading = f"Why {slower} is slower than {faster}, by {_difference(account)}"
    largest = sorted(account.rows, key=lambda row: -abs(row.seconds))[:most]
    rows = tuple(TableRow(_cells(row)) for row in account.rows if row in largest)
    head = ("what", "where", "difference", f"in {slower}", f"in {faster}", "why")
    return AccountView(heading, Table(head, rows, wraps_names=True, title=heading))


def why_sentences(diagnosis: Diagnosis, chosen: str | None) -> tuple[str, ...]:
    """Where the time of the default goes, in one or two sentences: against what is recommended, else by itself."""
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    trial = diagnosis.measured_trial(baseline)
    account = next((a for a in diagnosis.accounts if (a.slower, a.faster) == (baseline, chosen)), None)
    if account is not None and account.rows:
        return (account_sentence(account),)
    if trial is None or trial.status != "ok":
        return ()
    found = (conversions_sentence(trial), decision_sentence(trial, in_full=False))
    return tuple(sentence for sentence in found if sentence)


def account_sentence(account: Account) -> str:
    """The rows that contribute most, in short, and the rest, so that they add up to the difference."""
    difference = account.slower_seconds - account.faster_seconds
    costly = sorted(account.rows, key=lambda row: -row.seconds)
    shown = [row for row in costly if row.seconds >= _WORTH_A_SENTENCE * abs(difference) and row.seconds > 0]
    parts: list[str] = []
    rest = difference
    for row in shown[:MOST_ROWS]:
        part = f"{format_seconds(row.seconds)} {_in_short(row)}"
        if parts and len(", ".join((*parts, part))) > _LONGEST:
            break
        parts.append(part)
        rest -= row.seconds
    if abs(rest) >= _WORTH_A_SENTENCE * abs(difference):
        parts.append(f"{signed_seconds(rest)} the rest")
    who = "the default" if account.slower == BASELINE else shown_name(account.slower)
    return f"{who} is slower by {format_seconds(difference)}: {', '.join(parts)}"


def _in_short(row: AccountRow) -> str:
    place = clean_name(line_words(row.locations[0])) if row.locations else row.module
    what = {
        "conversion": "layout conversions",
        "generated_kernel": f"a slower kernel for {row_name(row)}",
        "layout": f"{row_name(row)} in another layout",
        "implementation": f"{row_name(row)} in other library code",
        "missing_fusion": f"{row_name(row)}, not fused",
    }.get(row.kind, row_name(row))
    count = f"{row.count} x " if row.count > 1 and row.kind != "conversion" else ""
    return f"{count}{what} ({clean_name(place)})" if place else f"{count}{what}"


def conversions_sentence(trial: Trial) -> str | None:
    """What a trial converts in each call, what that costs, and what of it is undone; None if there is nothing."""
    counted = counted_conversions(trial)
    if trial.kernels is None and not trial.is_static:
        return "kernels were not recorded, so conversions are not known"
    if not counted:
        return None
    seconds, whole = sum_seconds(counted), trial.kernels.seconds if trial.kernels is not None else None
    moved = [conversion.bytes_moved for conversion in counted]
    cost = ""
    if seconds is not None and whole:
        cost = f", {format_share(seconds / whole)} of kernel time"
    elif None not in moved:
        cost = f", {format_bytes(sum(count or 0 for count in moved))} moved"
    number = launch_count(counted)
    words = f"{listing(tensors_in_short(trial), None)} {be(number)} converted in every call{cost}"
    waste = waste_of(trial)
    if waste is None:
        return words
    time = "" if waste.seconds is None or cost else f", {format_seconds(waste.seconds)}"
    place = next((line_words(pair.location) for pair in trial.redundant_pairs if pair.location is not None), None)
    there = f" ({clean_name(place)})" if place else ""
    return f"{words}; {count_of(waste.pair_count, 'round trip')} for nothing{time}{there}"


def decision_sentence(trial: Trial, *, in_full: bool) -> str:
    """
    What Inductor decided about layouts and why.

    Args:
        in_full: Also if the decision reaches every convolution.
    """
    found = [(graph.direction, graph.decision) for graph in trial.graphs if graph.decision is not None]
    found = [(direction, card) for direction, card in found if card.convolution_count]
    for direction, card in found:
        if card.applied is False:
            part = "" if direction == "inference" else f" in the {direction}"
            why = "" if card.rule == "config-off" else f": {clean(card.explanation, 160)}"
            return f"layout optimization is off{part}{why}"
    cards = [card for _, card in found]
    count = sum(card.convolution_count for card in cards)
    reached = sum(card.channels_last_convolution_count for card in cards)
    if not cards or (reached == count and not in_full):
        return ""
    ranks = {convolution.rank for card in cards for convolution in card.convolutions}
    why = " (only 2-D)" if reached < count and ranks and not ranks & {2, None} else ""
    if in_full and not why:
        why = f": {clean(cards[0].explanation, 160)}"
    return f"layout optimization reaches {reached} of {count_of(count, 'convolution')}{why}"


def _difference(account: Account) -> str:
    return (
        f"{signed_seconds(account.slower_seconds - account.faster_seconds)} of {format_seconds(account.slower_seconds)}"
    )


def row_name(row: AccountRow) -> str:
    """What a row is about, in a few words."""
    if row.kind == "small":
        return f"{clean(row.detail or 'rows')}, each small"
    if row.kind == "outside_kernels":
        return "outside kernels"
    if row.kind == "not_aligned":
        return "operations without a counterpart"
    operations = listing((clean(name, KERNEL_LENGTH) for name in row.operations), 3) or "an operation"
    return f"{operations} (backward)" if row.backward else operations


def _layouts(row: AccountRow) -> str:
    return f"{layout_words(row.slower_layout)} against {layout_words(row.faster_layout)}"


def _cells(row: AccountRow) -> tuple[str, ...]:
    why = _KIND_WORDS[row.kind]
    if row.kind == "layout":
        why = _layouts(row)
    elif row.detail and row.kind in ("conversion", "outside_kernels"):
        why = f"{why}: {row.detail}"
    places = f", {row.count} places" if row.count > 1 else ""
    return (
        f"{row_name(row)}{places}",
        _place(row) or UNKNOWN,
        signed_seconds(row.seconds),
        UNKNOWN if row.slower_seconds is None else _seconds(row.slower_seconds),
        UNKNOWN if row.faster_seconds is None else _seconds(row.faster_seconds),
        clean(why),
    )


def _place(row: AccountRow) -> str | None:
    """The user's lines, those of one file together, else the module."""
    if not row.locations:
        return clean_name(row.module) if row.module else None
    files: dict[str, list[int]] = {}
    for location in row.locations:
        files.setdefault(line_words(location).removesuffix(str(location.line)), []).append(location.line)
    return listing((clean_name(f"{file}{_lines(lines)}") for file, lines in files.items()), 2)


def _lines(lines: Sequence[int]) -> str:
    known = sorted(set(lines))
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        return f"{known[0]} to {known[-1]}"
    return listing(map(str, known), 3)


def _seconds(seconds: float | None) -> str:
    return "nothing" if not seconds else format_seconds(seconds)


def signed_seconds(seconds: float) -> str:
    """Seconds with a minus before them where they are less than nothing."""
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)
