"""
The time that many recorded runs lost to layouts, added up, as frozen values that are saved as JSON.

All sums are sums of whole numbers (nanoseconds, bytes or launches), so that any order gives exactly the same result.
``None`` means "not recorded"; in a sum it counts as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.answer import Finding
from layoutdoctor.diagnosis.conversion import ConversionDirection, Owner
from layoutdoctor.diagnosis.diagnosis import reports_layer
from layoutdoctor.diagnosis.kernel import Waiting
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.layout import Size
from layoutdoctor.diagnosis.record import Count, Integer, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

Dimension = Literal["rule", "aside", "kernel", "operation", "module", "shape", "step", "device"]
NOT_KNOWN = ""
"""The name, in any dimension, of the sum over conversions whose own name was not recorded."""


class ScanRow(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    The sum over conversions of one file. The conversions have equal values in all fields up to ``is_counted``.

    Attributes:
        step: The profiler step in which the conversions ran.
        rule: Code of the rule whose findings name the conversions, the lowest of several codes; None without a rule.
        kernel: Name of the kernel without the parts that change from version to version, such as
            ``cudnn::nchwToNhwcKernel``.
        is_counted: Whether the time is part of ``ScannedFile.conversion_nanoseconds``. False for conversions that a
            rule names, but that change no memory format, or do not certainly change one.
        exposed_nanoseconds: The part of the time in which nothing else ran on the device; None if not known.
    """

    rule: str | None
    step: str | None = None
    device: Integer | None = None
    owner: Owner
    kernel: str | None = None
    op: str | None = None
    module: str | None = None
    shape: tuple[Size, ...] | None = None
    direction: ConversionDirection
    is_counted: bool = True
    count: Count
    nanoseconds: Count
    exposed_nanoseconds: Count | None = None
    bytes_moved: Count | None = None


class ScannedFile(Record, frozen=True, kw_only=True, omit_defaults=True):
    """
    One file, whether it could be examined or not.

    Attributes:
        name: Path below the folder that all files share; a member of an archive follows ``!``.
        rank: Rank of the process that recorded the file; None if not known.
        file_bytes: Size on disk; for a packed file, the packed size.
        failure: Reason why the file could not be examined; None if it could.
        conversion_nanoseconds: Time of the counted conversions: conversions by libraries, and eager copies.
        exposed_nanoseconds: Part of ``conversion_nanoseconds`` in which nothing else ran on the device.
        undecided_nanoseconds: Time of kernels that may convert a layout; no other sum includes it.
        findings: The findings of the rules; their evidence is left out, because it is in the file itself.
    """

    name: str
    rank: Integer | None = None
    file_bytes: Count | None = None
    failure: str | None = None
    torch: str | None = None
    device_name: str | None = None
    kernel_count: Count = 0
    kernel_nanoseconds: Count = 0
    conversion_count: Count = 0
    conversion_nanoseconds: Count = 0
    exposed_nanoseconds: Count = 0
    undecided_nanoseconds: Count = 0
    not_understood_count: Count = 0
    waiting: Waiting | None = None
    lacks: tuple[Lack, ...] = ()
    findings: tuple[Finding, ...] = ()


class ScannedRows(Record, frozen=True, kw_only=True):
    """
    One file and its conversions: a line of the file that ``layoutdoctor scan --output FILE.jsonl`` writes.

    Attributes:
        fingerprint: Text that changes when the file changes; None if it is not known, or the scan is not to be resumed.
    """

    layoutdoctor_version: str = __version__
    fingerprint: str | None = None
    file: ScannedFile
    rows: tuple[ScanRow, ...] = ()


class ScanTotal(Record, frozen=True):
    """The sum of rows."""

    count: Count = 0
    nanoseconds: Count = 0
    exposed_nanoseconds: Count = 0
    bytes_moved: Count = 0
    file_count: Count = 0


class Scan(Record, frozen=True, kw_only=True):
    """
    The time that many recorded runs lost to layouts.

    Attributes:
        files: Every file, including the files that could not be examined, sorted by name.
        totals: Sums of the counted conversions by dimension and name, such as ``totals["module"]["encoder"]``. The name
            ``""`` is for conversions without a recorded name. The dimension ``aside`` has, by rule, the sums of the
            conversions that are not counted.
    """

    schema_version: Count = 1
    layoutdoctor_version: str = __version__
    files: tuple[ScannedFile, ...] = ()
    totals: dict[Dimension, dict[str, ScanTotal]] = msgspec.field(default_factory=dict)

    @property
    def examined(self) -> tuple[ScannedFile, ...]:
        """The files that could be examined."""
        return tuple(file for file in self.files if file.failure is None)

    @property
    def failed(self) -> tuple[ScannedFile, ...]:
        """The files that could not be examined."""
        return tuple(file for file in self.files if file.failure is not None)

    def __str__(self) -> str:
        return str(reports_layer().render_scan(self, "text"))


class ScanSum:
    """Adds up files, in any order; its memory grows with the numbers of files and names, not with the rows."""

    def __init__(self) -> None:
        self._files: list[ScannedFile] = []
        self._totals: dict[Dimension, dict[str, list[int]]] = {}

    def add(self, found: ScannedRows) -> None:
        """Adds one file, which must not have been added before."""
        self._files.append(found.file)
        seen: set[tuple[Dimension, str]] = set()
        for row in found.rows:
            amounts = (row.count, row.nanoseconds, row.exposed_nanoseconds or 0, row.bytes_moved or 0)
            for place in _names_of(row, found.file.device_name):
                dimension, name = place
                named = self._totals.setdefault(dimension, {})
                more = (*amounts, int(place not in seen))
                named[name] = [sum(pair) for pair in zip(named.get(name, _NOTHING), more, strict=True)]
                seen.add(place)

    def result(self) -> Scan:
        """Returns the sum of all files so far."""
        totals = {
            dimension: {name: ScanTotal(*amounts) for name, amounts in sorted(named.items())}
            for dimension, named in sorted(self._totals.items())
        }
        return Scan(files=tuple(sorted(self._files, key=lambda file: file.name)), totals=totals)


_NOTHING = [0] * len(ScanTotal.__struct_fields__)


def _names_of(row: ScanRow, device_name: str | None) -> Iterable[tuple[Dimension, str]]:
    """Yields the dimensions and names to which a row's amounts are added."""
    yield "rule" if row.is_counted else "aside", row.rule or NOT_KNOWN
    if row.is_counted:
        yield "kernel", row.kernel or NOT_KNOWN
        yield "operation", row.op or NOT_KNOWN
        yield "module", row.module or NOT_KNOWN
        yield "shape", "x".join(map(str, row.shape)) if row.shape is not None else NOT_KNOWN
        yield "step", row.step or NOT_KNOWN
        yield "device", device_name or NOT_KNOWN
