"""Where a difference between two configurations goes, as sentences and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.account_rows import as_one, computing, in_groups
from layoutdoctor.examination.costs import convolution_seconds
from layoutdoctor.examination.trust import OUTSIDE_KERNELS
from layoutdoctor.reports.sections.rows import UNKNOWN, Table, TableRow
from layoutdoctor.reports.sections.wording import KERNEL_LENGTH, baseline_phrase, clean, clean_name, precise_share
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of, joined, layout_words, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.records import Account, AccountRow, Diagnosis, Trial

MOST_SENTENCES = 3
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
    "small": "too small to tell one by one",
    "allocation": "memory mapped anew in every call",
    "launches": "more calls",
    "outside_kernels": "cause not known",
}


@dataclass(frozen=True, slots=True)
class AccountView:
    """
    One account, ready to be laid out.

    Attributes:
        heading: Which difference, and how much.
        sentences: What contributes most, at most three; before them, what has no counterpart.
        table: All rows.
    """

    heading: str
    sentences: tuple[str, ...]
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
    slower, faster = clean_name(account.slower), clean_name(account.faster)
    difference = account.slower_seconds - account.faster_seconds
    heading = f"Why {slower} is slower than {faster}, by {_difference(account)}"
    costly = sorted(map(as_one, in_groups(account.rows)), key=lambda row: -row.seconds)
    told = [row for row in costly if row.seconds >= _WORTH_A_SENTENCE * abs(difference) and row.seconds > 0]
    told = told[:MOST_SENTENCES]
    strange = [row for row in costly if row.kind == "not_aligned" and row not in told]
    largest = sorted(account.rows, key=lambda row: -abs(row.seconds))[:most]
    rows = tuple(TableRow(_cells(row)) for row in account.rows if row in largest)
    head = ("what", "where", "difference", f"in {slower}", f"in {faster}", "why")
    return AccountView(
        heading=heading,
        sentences=tuple(map(_sentence, (*told, *strange))),
        table=Table(head, rows, wraps_names=True, title=heading),
    )


def account_lines(
    accounts: Iterable[Account], baseline: str | None = None, chosen: str | None = None
) -> tuple[str, ...]:
    """What the first screen says: why the baseline is slower than what was chosen; of other differences the largest."""
    lines: list[str] = []
    for account in accounts:
        view = account_view(account)
        heading = view.heading
        if (account.slower, account.faster) == (baseline, chosen):
            who = "the default" if baseline == BASELINE else clean_name(account.slower)
            heading = f"Why {who} is slower, by {_difference(account)}"
        told = view.sentences[:1] if lines else view.sentences
        lines += [f"{heading}: {'; '.join(told)}"] if told else []
    return tuple(lines)


def convolution_line(trial: Trial) -> str | None:
    """How much of the kernel time convolutions take; None where not known."""
    kernels = trial.kernels
    seconds = None if kernels is None or kernels.lacks else convolution_seconds(kernels)
    if kernels is None or not kernels.seconds or seconds is None:
        return None
    share = precise_share(min(seconds, kernels.seconds), kernels.seconds)
    return (
        f"Convolutions: {share} of the time in kernels of {baseline_phrase(trial.name)}, conversions for them included"
    )


def _difference(account: Account) -> str:
    return (
        f"{signed_seconds(account.slower_seconds - account.faster_seconds)} of {format_seconds(account.slower_seconds)}"
    )


def row_name(row: AccountRow) -> str:
    """What a row is about, in a few words."""
    if row.kind == "small":
        return f"{clean(row.detail or 'rows')}, each small"
    if row.kind in OUTSIDE_KERNELS:
        return "outside kernels"
    if row.kind == "not_aligned":
        return "operations without a counterpart"
    operations = listing((clean(name, KERNEL_LENGTH) for name in row.operations), 3) or "an operation"
    return f"{operations} (backward)" if row.backward else operations


def _sentence(row: AccountRow) -> str:
    cost, name, place = format_seconds(row.seconds), row_name(row), _place(row)
    at = f" at {place}" if place else ""
    detail = clean(row.detail) if row.detail else None
    if row.kind == "small":
        return f"{cost} in {name}"
    if row.kind in OUTSIDE_KERNELS:
        return joined((f"{cost} outside kernels: {_KIND_WORDS[row.kind]}", detail), ", ")
    if row.kind == "not_aligned":
        times = f"{_seconds(row.slower_seconds)} against {_seconds(row.faster_seconds)}"
        return f"{times} in operations without a counterpart on the other side: {_operations(row)}"
    if row.kind == "conversion":
        return f"{cost} in layout conversions, {detail}{at}"
    times = f"{_seconds(row.slower_seconds)} against {_seconds(row.faster_seconds)}"
    if row.kind == "generated_kernel":
        kernels = sum(name.startswith(("cpp_", "triton_")) for name in row.slower_kernels)
        what = f"{count_of(kernels, 'generated kernel') if kernels > 1 else 'a generated kernel'} for {name}"
        return f"{cost} in {what}{at}, {times}"
    if row.kind == "missing_fusion":
        counted = f" at {row.count} places{f' ({place})' if place else ''}" if row.count > 1 else at
        return f"{cost} in {name}{counted}, {times}, which is computed within other kernels there"
    if row.kind in ("layout", "implementation"):
        sides = map(computing, (row.slower_kernels, row.faster_kernels))
        codes = [listing((clean(k, KERNEL_LENGTH) for k in kernels), 2) for kernels in sides]
        why = clean(_layouts(row)) if row.kind == "layout" else f"{codes[0]} against {codes[1]}"
        calls = f"{row.count} calls of " if row.count > 1 else ""
        return f"{cost} in {calls}{name}{at}, {times}: {why}"
    return joined((f"{cost} in {name}{at}, {times}", detail if row.kind == "operation" else None), ", ")


def _layouts(row: AccountRow) -> str:
    return f"{layout_words(row.slower_layout)} against {layout_words(row.faster_layout)}"


def _operations(row: AccountRow) -> str:
    return listing((clean(name, KERNEL_LENGTH) for name in row.operations), 4)


def _cells(row: AccountRow) -> tuple[str, ...]:
    why = _KIND_WORDS[row.kind]
    if row.kind == "layout":
        why = _layouts(row)
    elif row.detail and row.kind in ("conversion", *OUTSIDE_KERNELS):
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
