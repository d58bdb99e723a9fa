"""LD307: operations that one memory format makes slower."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Account, AccountRow, Diagnosis, Finding
from layoutdoctor.rules.accounts import large_rows, place_of_row, severity_of_rows, work_words
from layoutdoctor.rules.advice import use_faster
from layoutdoctor.rules.base import Rule
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import joined, layout_words, shown


def slower_operations(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per configuration and line of the model whose operation is faster in another layout."""
    seen = set()
    for account in diagnosis.accounts:
        for row in large_rows(diagnosis, account):
            place = account.slower, row.module, row.locations, row.backward
            is_one_call = row.kind == "layout" and row.count == 1  # one of many small calls is not worth a change
            if is_one_call and place not in seen:
                seen.add(place)
                yield _operation_finding(diagnosis, account, row)


def _operation_finding(diagnosis: Diagnosis, account: Account, row: AccountRow) -> Finding:
    slower, faster = format_seconds(row.slower_seconds or 0.0), format_seconds(row.faster_seconds or 0.0)
    given, wanted = layout_words(row.slower_layout), layout_words(row.faster_layout)
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    around, either = f"convert the input of this operation to {wanted}", "; or "
    if row.tensor_bytes and bandwidth:
        seconds = 2 * row.tensor_bytes / bandwidth  # each byte is read and written once
        cost = (
            f"converting {format_bytes(row.tensor_bytes)} takes about {format_seconds(seconds)} at the copy bandwidth"
        )
        around, either = f"converting around this operation alone gains nothing: {cost}", "; "
        if seconds < row.seconds:
            around, either = f"convert to {wanted} around this operation: {cost}", "; or "
    return LD307.finding(
        account.slower,
        f"{work_words(row)}: {slower} in {given}, {faster} in {wanted} ({shown(account.faster)})",
        joined((use_faster(diagnosis, account), around), either),
        severity=severity_of_rows(diagnosis, account, [row]),
        at=place_of_row(row),
        evidence=(*row.slower_kernels, *row.faster_kernels),
        seconds=row.seconds,
    )


LD307 = Rule("LD307", "operation-slower-in-format", slower_operations)
