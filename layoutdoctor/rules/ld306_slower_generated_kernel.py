"""
A generated kernel is slower than the operations that it replaces.

What it finds:
    In the account of a difference (the default against the recommended configuration, and against eager where that is
    faster): a kernel of Inductor that takes longer than what computes the same lines in the other configuration, by at
    least 2 % of a call.

Why it costs:
    Fusing saves passes over memory, and is nearly always faster. It is not where the loop's order suits one tensor and
    walks another one in strides, where fused operations keep the loop from vector instructions, or where one of them,
    such as the indices of a max pooling, is computed in a dearer way.

Example:
    ReLU, its backward mask and a max pooling in one kernel of 12.3 ms, in eager 0.9 ms: 2.15x slower than eager in all,
    with conversions of 2.6 % of the kernel time.

What to do:
    Use the other configuration, and report the kernel to PyTorch: its source stands in the HTML report and in the JSON
    (``accounts[].rows[].source``). Another memory format of the input often gives another loop.

When it is fine:
    The whole is faster all the same, and the difference is small. Times are those of one profiled iteration.

Source:
    pytorch/pytorch issues #93472 (closed for want of a cause to act on) and #126708; ``Scheduler.fuse_nodes`` and
    ``CppScheduling`` in torch/_inductor, torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place
from layoutdoctor.rules.advice import use_or_recommended
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import shown
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Account, AccountRow, Diagnosis, Finding

_LEAST_SHARE = 0.02
_LEAST_FACTOR = 1.5
_GENERATED = ("cpp_", "triton_")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding for all kernels that the same configuration does better without."""
    told: set[tuple[str, ...]] = set()
    for account in diagnosis.accounts:
        rows = [row for row in account.rows if row.slower_kernels not in told and _is_slower(account, row)]
        told.update(row.slower_kernels for row in rows)
        if rows:
            yield _finding(diagnosis, account, sorted(rows, key=lambda row: -row.seconds))


def _is_slower(account: Account, row: AccountRow) -> bool:
    if row.kind != "generated_kernel":
        return False
    slower, faster = row.slower_seconds or 0.0, row.faster_seconds or 0.0
    return row.seconds >= _LEAST_SHARE * account.slower_seconds and slower >= _LEAST_FACTOR * faster > 0


def _finding(diagnosis: Diagnosis, account: Account, rows: list[AccountRow]) -> Finding:
    worst, *others = rows
    slower, faster = worst.slower_seconds or 0.0, worst.faster_seconds or 0.0
    names = [name for name in worst.slower_kernels if name.startswith(_GENERATED)]
    ratio = f"{format_ratio(slower / faster)} slower"
    times = f"{format_seconds(slower)}, in {shown(account.faster)} the same takes {format_seconds(faster)} ({ratio})"
    verb = "computes" if len(names) == 1 else "compute"
    message = f"{listing(names, 2)} {verb} {_what(worst)} in {times}"
    if others:
        lost = format_seconds(sum(row.seconds for row in others))
        verb = "loses" if len(others) == 1 else "lose"
        message += f"; {len(others)} more {verb} {lost} so: {listing(map(_short, others), 3)}"
    return RULE.finding(
        account.slower,
        message,
        f"{use_or_recommended(diagnosis, account)}, and report the kernel to PyTorch: its source is in the HTML report "
        "and in the JSON",
        severity="warning",
        at=Place(worst.module, worst.locations[0] if worst.locations else None, 1, None),
        evidence=[name for row in rows for name in row.slower_kernels],
        seconds=sum(row.seconds for row in rows),
    )


def _what(row: AccountRow) -> str:
    return f"{listing(row.operations, 4)}{' in the backward' if row.backward else ''}"


def _short(row: AccountRow) -> str:
    """A further one, by what it computes, where, and how long both take."""
    where = f" at {line_words(row.locations[0])}" if row.locations else ""
    times = f"{format_seconds(row.slower_seconds or 0.0)} against {format_seconds(row.faster_seconds or 0.0)}"
    return f"{_what(row)}{where} ({times})"


RULE = document_rule("LD306", "slower-generated-kernel", check, __doc__)
