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
    if _reads_faster_format(diagnosis, account, row):
        around, either = f"the input is in {wanted} already: give the result the same format", "; "
    return LD307.finding(
        account.slower,
        f"{work_words(row)}: {slower} in {given}, {faster} in {wanted} ({shown(account.faster)})",
        joined((use_faster(diagnosis, account), around), either),
        severity=severity_of_rows(diagnosis, account, [row]),
        at=place_of_row(row),
        evidence=(*row.slower_kernels, *row.faster_kernels),
        seconds=row.seconds,
    )


def _reads_faster_format(diagnosis: Diagnosis, account: Account, row: AccountRow) -> bool:
    """Whether generated kernels of the slower configuration read a tensor that has the faster format already."""
    trial, slower, faster = diagnosis.find_trial(account.slower), row.slower_layout, row.faster_layout
    if trial is None or slower is None or faster is None:
        return False
    given, wanted = {*slower.memory_formats}, {*faster.memory_formats}
    for graph in trial.graphs:
        layouts = {buffer.name: buffer.layout for buffer in graph.buffers}
        reads = {name for buffer in graph.buffers if buffer.kernel in row.slower_kernels for name in buffer.reads}
        formats = [{*layout.memory_formats} for name in reads if (layout := layouts.get(name)) is not None]
        if any(own & wanted and not own & given for own in formats):
            return True
    return False


LD307 = Rule("LD307", "operation-slower-in-format", slower_operations)
