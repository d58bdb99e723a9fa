"""
Reads, applies and writes a file of accepted findings, so that CI fails only on new findings.

Other tools call such a file a baseline; here a baseline is the configuration that ratios refer to. A finding is
recognized by its rule, configuration, module, file name and the text of its line. The number of the line counts only
if its text was not recorded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Literal

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.record import Record
from layoutdoctor.diagnosis.saved import UNREADABLE, read_saved, reason_of
from layoutdoctor.errors import RecordError
from layoutdoctor.files.writing import printable, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import SourceLocation


class Place(Record, frozen=True, kw_only=True):
    """
    The place of a finding.

    Attributes:
        file: File name without folders.
        line: The text of the line, not its number; ``line 36`` if the text was not recorded.
    """

    module: str | None = None
    file: str | None = None
    line: str | None = None


class AcceptedFinding(Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One accepted finding.

    Attributes:
        code: The rule's code.
        configuration: The finding's configuration; None for a finding about the whole diagnosis.
        reason: The reason why the finding is accepted; people fill it in.
        until: The last day, UTC, on which the finding is accepted; None if it is always accepted.
        subject: The target that was diagnosed when the finding was accepted. Only a diagnosis of this target can show
            that the finding is gone; None if any diagnosis can.
        evidence_count: Number of pieces of evidence of the accepted finding. A finding with more evidence is not
            accepted; None to accept any number.
        message: The message of the finding; it is for people and is not compared.
        also: Further places where the finding is accepted. A finding names only its costliest place, which may change.
    """

    code: str
    configuration: str | None = None
    reason: str = ""
    until: date | None = None
    subject: str | None = None
    evidence_count: int | None = None
    message: str | None = None
    also: tuple[Place, ...] = ()

    def __str__(self) -> str:
        where = [f"[{self.configuration}]" if self.configuration else "", self.file or "", self.module or ""]
        return " ".join(part for part in (self.code, *where) if part)


class AcceptedFile(Record, frozen=True, kw_only=True):
    """The accepted findings of a project, sorted by rule, subject, configuration and place."""

    schema_version: Literal[1] = 1
    layoutdoctor_version: str | None = None
    accepted: tuple[AcceptedFinding, ...]


NOTHING_ACCEPTED = AcceptedFile(accepted=())


@dataclass(frozen=True)
class Acceptance:
    """
    The result of applying a file of accepted findings to a diagnosis.

    Attributes:
        diagnosis: The diagnosis, in which the field ``accepted`` of each accepted finding has the reason.
        gone: Entries of the file whose finding is not there, although the diagnosis could have found it.
        expired: Entries past their last day; their findings are not accepted.
        outgrown: Entries whose finding has more evidence than was accepted; the finding is not accepted.
    """

    diagnosis: Diagnosis
    gone: tuple[AcceptedFinding, ...] = ()
    expired: tuple[AcceptedFinding, ...] = ()
    outgrown: tuple[AcceptedFinding, ...] = ()

    @property
    def count(self) -> int:
        """Number of accepted findings."""
        return sum(finding.accepted is not None for finding in self.diagnosis.findings)


_Key = tuple[str, ...]


def _key(code: str, configuration: str | None, place: Place) -> _Key:
    """Returns the facts of a finding that are compared; runs of white space count as one space."""
    parts = (code, configuration, place.module, place.file, place.line)
    return tuple(str(printable(" ".join((part or "").split()))) for part in parts)


def _key_of(finding: Finding) -> _Key:
    return _key(finding.code, finding.configuration, _place(finding.location, finding.module))


def finding_fingerprint(finding: Finding) -> str:
    """Returns 32 hexadecimal digits by which other tools recognize a finding, for SARIF."""
    return hashlib.sha256("\0".join(_key_of(finding)).encode()).hexdigest()[:32]


def _place(location: SourceLocation | None, module: str | None) -> Place:
    if location is None:
        return Place(module=module)
    name = PureWindowsPath(location.file).name  # takes either slash
    line = " ".join((location.code or "").split()) or f"line {location.line}"
    return Place(module=module, file=name or location.file, line=line)


def accept(diagnosis: Diagnosis, accepted: AcceptedFile, today: date | None = None) -> Acceptance:
    """
    Marks the findings that are accepted, and finds the entries that no longer accept a finding.

    Args:
        today: The day on which entries are valid; None for the present day, UTC.
    """
    day = today or _today()
    expired = tuple(entry for entry in accepted.accepted if entry.until is not None and entry.until < day)
    valid = [entry for entry in accepted.accepted if entry not in expired]
    known = _by_key(valid)
    used: set[AcceptedFinding] = set()
    outgrown: dict[AcceptedFinding, None] = {}
    findings = []
    for finding in diagnosis.findings:
        candidates, count = known.get(_key_of(finding), ()), len(finding.evidence)
        entry = next((e for e in candidates if e.evidence_count is None or count <= e.evidence_count), None)
        if entry is None:
            outgrown |= dict.fromkeys(candidates)
        else:
            used.add(entry)
        findings.append(msgspec.structs.replace(finding, accepted=None if entry is None else entry.reason))
    return Acceptance(
        diagnosis=msgspec.structs.replace(diagnosis, findings=tuple(findings)),
        gone=tuple(e for e in valid if e not in used and e not in outgrown and _is_judged(diagnosis, e)),
        expired=expired,
        outgrown=tuple(entry for entry in outgrown if entry not in used),
    )


def _today() -> date:
    return datetime.now(timezone.utc).date()


def _by_key(entries: Iterable[AcceptedFinding]) -> dict[_Key, list[AcceptedFinding]]:
    found: dict[_Key, list[AcceptedFinding]] = {}
    for entry in entries:
        for key in {_key(entry.code, entry.configuration, place) for place in (entry, *entry.also)}:
            found.setdefault(key, []).append(entry)
    return found


def _is_judged(diagnosis: Diagnosis, entry: AcceptedFinding) -> bool:
    """Whether the diagnosis could have the entry's finding: it is finished and has its subject and configuration."""
    if diagnosis.interrupted is not None or entry.subject not in (None, diagnosis.subject.name):
        return False
    if entry.configuration is None:
        return True
    trial = diagnosis.find_trial(entry.configuration)
    return trial is not None and trial.status in ("ok", "same_as")


def accept_all(
    diagnosis: Diagnosis, previous: AcceptedFile = NOTHING_ACCEPTED, today: date | None = None
) -> AcceptedFile:
    """
    Makes a file that accepts every finding of a diagnosis.

    Args:
        previous: The file that is to be replaced. Entries that this diagnosis cannot judge, such as entries of another
            model, are kept. An entry whose finding is there again keeps its reason, and its last day unless it is over.
        today: The day on which last days are over; None for the present day, UTC.
    """
    day = today or _today()
    known = _by_key(previous.accepted)
    entries: dict[tuple[str, ...], AcceptedFinding] = {}
    for finding in diagnosis.findings:
        old = next(iter(known.get(_key_of(finding), ())), None)
        new = _entry(diagnosis, finding)
        if old is not None:
            until = old.until if old.until is not None and old.until >= day else None
            new = msgspec.structs.replace(new, reason=old.reason, until=until)
        same = entries.get(_order(new), new)  # of two entries for one place, the entry with more evidence accepts both
        entries[_order(new)] = max(same, new, key=lambda entry: entry.evidence_count or 0)
    for old in previous.accepted:
        if not _is_judged(diagnosis, old):
            entries.setdefault(_order(old), old)
    return AcceptedFile(layoutdoctor_version=__version__, accepted=tuple(entries[key] for key in sorted(entries)))


def _entry(diagnosis: Diagnosis, finding: Finding) -> AcceptedFinding:
    place = _place(finding.location, finding.module)
    return AcceptedFinding(
        code=finding.code,
        configuration=finding.configuration,
        module=place.module,
        file=place.file,
        line=place.line,
        subject=diagnosis.subject.name,
        evidence_count=len(finding.evidence),
        message=finding.message,
        also=tuple(sorted({*_places(diagnosis, finding)} - {place}, key=str)),
    )


def _places(diagnosis: Diagnosis, finding: Finding) -> Iterator[Place]:
    """Yields the places of the round trips and conversions in the evidence; any may be the costliest next time."""
    trial = diagnosis.find_trial(finding.configuration)
    if trial is None:
        return
    evidence = set(finding.evidence)
    for pair in trial.redundant_pairs:
        if evidence & {pair.first, pair.second}:
            yield _place(pair.location, pair.module)
    kernels = trial.kernel_summary.conversions
    for conversion in (*kernels, *(c for graph in trial.graphs for c in graph.conversions)):
        if conversion.id in evidence:
            yield _place(conversion.location, conversion.module)


def _order(entry: AcceptedFinding) -> tuple[str, ...]:
    """Sort key of an entry. It contains the subject, so that models that share code have entries of their own."""
    parts = (entry.code, entry.subject, entry.configuration, entry.file, entry.line, entry.module)
    return tuple(part or "" for part in parts)


def load_accepted(path: str | Path) -> AcceptedFile:
    """
    Reads a file that ``--write-accepted`` wrote and people may have edited.

    Raises:
        RecordError: The file cannot be read, or does not hold accepted findings.
    """
    try:
        return msgspec.json.decode(read_saved(path), type=AcceptedFile)
    except UNREADABLE as error:
        why = f"{reason_of(error)}; expected accepted findings (--write-accepted)"
        raise RecordError(f"cannot read {str(path)!r}: {why}") from error


def save_accepted(path: str | Path, accepted: AcceptedFile) -> None:
    """
    Writes a file of accepted findings; a reader sees the old file or the new file, never an incomplete one.

    Raises:
        OSError: The file could not be written.
    """
    with replacing(Path(path)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(printable(msgspec.to_builtins(accepted))), indent=2))
        stream.write(b"\n")
