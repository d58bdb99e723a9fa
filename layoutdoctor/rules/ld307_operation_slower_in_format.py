"""
An operation is slower in one memory format than in the other.

What it finds:
    In the account of a difference: operations that the slower configuration computes in another memory format than the
    faster one, and that take longer there by at least 2 % of a call: normalization, pooling, upsampling, concatenation,
    softmax over channels, and convolutions.

Why it costs:
    A kernel is written for one order of memory; in the other one it strides, or it makes its input contiguous first.
    GroupNorm and InstanceNorm read each channel by itself, which lies apart in channels_last; pooling and upsampling
    read all channels of a point, which lie apart in contiguous tensors.

Example:
    A bilinear upsampling takes 30 ms on a contiguous tensor and 0.9 ms on a channels_last one.

What to do:
    Use the format of the faster configuration. Where the whole model is faster in the other one, the finding says what
    that costs, and what converting around the operation would cost: all that it reads and writes, once read and once
    written at the copy bandwidth of this device. Convert around the operation if that is less.

When it is fine:
    The model as a whole is faster in the slower format of this one operation. Times are those of one profiled
    iteration. Where a third configuration calls the operation in the faster format and is no faster, it is not the
    layout, and nothing is said.

Source:
    aten/src/ATen/native/cpu/UpSampleKernel.cpp, MaxPoolKernel.cpp and group_norm_kernel.cpp, torch 2.13, each with code
    of its own for channels_last; pytorch/pytorch issue #111824 (GroupNorm).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules.advice import use_or_recommended
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import shown
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import layout_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Account, AccountRow, Diagnosis, Finding

_LEAST_SHARE = 0.02


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding a place and configuration."""
    told = set()
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    for account in diagnosis.accounts:
        for row in account.rows:
            place = account.slower, row.module, row.locations, row.backward
            is_one_call = row.kind == "layout" and row.count == 1  # of many small ones none is worth a change
            if not is_one_call or row.seconds < _LEAST_SHARE * account.slower_seconds or place in told:
                continue
            if not _is_slow_in_both(diagnosis, account, row):
                told.add(place)
                yield _finding(diagnosis, account, row, bandwidth)


def _is_slow_in_both(diagnosis: Diagnosis, account: Account, row: AccountRow) -> bool:
    """Whether another configuration calls the operation in the faster format, and takes about as long as the slower."""
    if row.faster_layout is None or row.slower_seconds is None or row.faster_seconds is None or row.module is None:
        return False
    formats = set(row.faster_layout.memory_formats)
    limit = (row.slower_seconds + row.faster_seconds) / 2
    for trial in diagnosis.trials:
        if trial.name in (account.slower, account.faster) or trial.kernels is None:
            continue
        nodes = {
            (graph.name, node.name)
            for graph in trial.graphs
            for node in graph.nodes
            if (node.module, node.backward) == (row.module, row.backward)
            and base_name(node.called or node.target) in row.operations
            and node.layout is not None
            and formats & set(node.layout.memory_formats)
        }
        called = (kernel for kernel in trial.kernels.kernels if (kernel.graph, kernel.node) in nodes)
        if sum(kernel.seconds or 0.0 for kernel in called) > limit:
            return True
    return False


def _finding(diagnosis: Diagnosis, account: Account, row: AccountRow, bandwidth: float | None) -> Finding:
    what = f"{listing(row.operations, 4)}{' in the backward' if row.backward else ''}"
    takes = "takes" if len(row.operations) == 1 else "take"
    slower, faster = format_seconds(row.slower_seconds or 0.0), format_seconds(row.faster_seconds or 0.0)
    formats = layout_words(row.slower_layout), layout_words(row.faster_layout)
    return RULE.finding(
        account.slower,
        f"{what} {takes} {slower} in {formats[0]}, and {faster} in {formats[1]} ({shown(account.faster)})",
        f"{use_or_recommended(diagnosis, account)}{_around(row, formats[1], bandwidth)}",
        severity="warning",
        at=Place(row.module, row.locations[0] if row.locations else None, 1, None),
        evidence=(*row.slower_kernels, *row.faster_kernels),
        seconds=row.seconds,
    )


def _around(row: AccountRow, wanted: str, bandwidth: float | None) -> str:
    """Whether it pays to convert before and behind the operation: each byte is read and written once."""
    if not row.tensor_bytes or not bandwidth:
        return f", or lay the input of this operation out in {wanted}"
    seconds = 2 * row.tensor_bytes / bandwidth
    cost = f"converting {format_bytes(row.tensor_bytes)} takes about {format_seconds(seconds)} at the copy bandwidth"
    if seconds < row.seconds:
        return f", or convert to {wanted} around this operation: {cost}"
    return f"; converting around this operation alone brings nothing: {cost}"


RULE = document_rule("LD307", "operation-slower-in-format", check, __doc__)
