"""
Selects, judges and describes rows of accounts.

An account splits the difference between the times of a slower and a faster configuration into rows, by operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from layoutdoctor.diagnosis import Account, AccountRow, Diagnosis, Severity
from layoutdoctor.examination.counts import Hotspot
from layoutdoctor.rules.advice import Times, severity_of_loss
from layoutdoctor.words import listing

_LEAST_SHARE_OF_CALL = 0.02
_LEAST_SECONDS = 100e-6
"""Smallest loss per operation on a CPU: waking sleeping threads at the start of a kernel may take nearly as long."""


def large_rows(diagnosis: Diagnosis, account: Account) -> list[AccountRow]:
    """Returns the rows of an account whose loss is large enough for a finding."""
    least = _LEAST_SHARE_OF_CALL * account.slower_seconds
    at_a_place = _LEAST_SECONDS if diagnosis.subject.device == "cpu" else 0.0
    return [row for row in account.rows if row.seconds >= max(least, row.count * at_a_place)]


def severity_of_rows(diagnosis: Diagnosis, account: Account, rows: Sequence[AccountRow]) -> Severity:
    """Judges the summed loss of the rows. Only the account's faster configuration counts as a cure."""
    trial, share = diagnosis.find_trial(account.slower), sum(row.seconds for row in rows) / account.slower_seconds
    if trial is None:
        return "warning"
    return severity_of_loss(Times(diagnosis), trial, share, lambda cure: cure.name == account.faster)


def place_of_row(row: AccountRow) -> Hotspot:
    """Returns a row's module, and the first of its lines."""
    return Hotspot(row.module, next(iter(row.locations), None))


def work_words(row: AccountRow) -> str:
    """Names a row's operations: ``"add and relu in the backward"``."""
    return f"{listing(row.operations)}{' in the backward' if row.backward else ''}"
