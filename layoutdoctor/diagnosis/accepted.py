"""
Accepted findings: a file of findings that a project lives with, so that CI fails on new ones only.

Other tools call such a file a baseline; here that word means the configuration that ratios refer to. A finding is known
again by its rule, configuration, module, file name and the text of its line, never by a line number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.records import Record
from layoutdoctor.diagnosis.saved import UNREADABLE
from layoutdoctor.diagnosis.writing import printable, replacing
from layoutdoctor.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, SourceLocation

ACCEPTED_SCHEMA_VERSION = 1
MOST_BYTES = 16 << 20
"""An accepted file is written by hand in part: one of more bytes is some other file."""

_FINGERPRINT_CHARACTERS = 32


class Place(Record, frozen=True, kw_only=True):
    """
    Where a finding may stand.

    Attributes:
        module: Path of the nn.Module; None where there is none.
        file: File name without folders; None where no line is known.
        code: The text of the line; where it was not recorded, ``line`` and the line's number.
    """

    module: str | None = None
    file: str | None = None
    code: str | None = None


class AcceptedFinding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One accepted finding.

    Attributes:
        code: The rule's code.
        configuration: The trial it is about; None where it is about the whole diagnosis.
        module: Path of the nn.Module.
        file: File name without folders.
        line: The text of the line, not its number.
        reason: Why it is accepted; for people to fill in.
        until: The last day on which it is accepted; None for ever.
        subject: What was diagnosed when it was accepted. Not compared: it says which diagnosis can find it gone.
        evidence_count: How many pieces of evidence the finding had; one that has more is not accepted any more. None
            accepts any number.
        message: What the finding said; for people, not compared.
        also: Further places of the same finding: where it names the costliest of several, another one may be
            named the next time.
        fingerprint: The hash of what is compared, by ``fingerprint``; checked where it is given, so that an entry that
            was changed by mistake is noticed.
    """

    code: str
    configuration: str | None = None
    module: str | None = None
    file: str | None = None
    line: str | None = None
    reason: str = ""
    until: date | None = None
    subject: str | None = None
    evidence_count: int | None = None
    message: str | None = None
    also: tuple[Place, ...] = ()
    fingerprint: str | None = None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(module=self.module, file=self.file, code=self.line)

    def __str__(self) -> str:
        where = [f"[{self.configuration}]" if self.configuration else "", self.file or "", self.module or ""]
        return " ".join(part for part in (self.code, *where) if part)


class AcceptedFile(Record, frozen=True, kw_only=True):
    """
    The accepted findings of a project.

    Attributes:
        schema_version: Version of this file's form; not that of a diagnosis.
        layoutdoctor_version: What wrote it.
        accepted: The entries, sorted by rule, subject, configuration and place.
    """

    schema_version: int = ACCEPTED_SCHEMA_VERSION
    layoutdoctor_version: str | None = None
    accepted: tuple[AcceptedFinding, ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """
    A diagnosis with its accepted findings marked.

    Attributes:
        diagnosis: The same, each accepted finding with its reason in ``accepted``.
        gone: Entries whose finding is not there any more, though the diagnosis could have found it.
        expired: Entries whose last day is over; what they accepted counts again.
        outgrown: Entries whose finding has more evidence than was accepted; it counts again.
    """

    diagnosis: Diagnosis
    gone: tuple[AcceptedFinding, ...] = ()
    expired: tuple[AcceptedFinding, ...] = ()
    outgrown: tuple[AcceptedFinding, ...] = ()

    @property
    def count(self) -> int:
        """How many findings are accepted."""
        return sum(finding.accepted is not None for finding in self.diagnosis.findings)


def fingerprint(code: str, configuration: str | None, place: Place) -> str:
    """
    The hash by which a finding is known again: 32 hexadecimal digits.

    The first 128 bits of the SHA-256 of rule code, configuration, module, file name and text of the line, in UTF-8, in
    this order, with a zero byte between them; what is not known is empty, and runs of white space count as one space.
    """
    parts = (code, configuration, place.module, place.file, place.code)
    text = "\0".join(" ".join((part or "").split()) for part in parts)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_FINGERPRINT_CHARACTERS]


def fingerprint_of(finding: Finding) -> str:
    """The fingerprint of a finding."""
    return fingerprint(finding.code, finding.configuration, _place(finding.location, finding.module))


def _place(location: SourceLocation | None, module: str | None) -> Place:
    """Where something stands, without folders and line numbers."""
    if location is None:
        return Place(module=module)
    code = " ".join((location.code or "").split()) or f"line {location.line}"
    name = PureWindowsPath(location.file).name  # takes either slash
    return Place(module=module, file=name or location.file, code=code)


def accept(diagnosis: Diagnosis, accepted: AcceptedFile, today: date | None = None) -> Acceptance:
    """
    Marks the findings that are accepted, and says which entries have nothing to accept any more.

    Args:
        diagnosis: Any diagnosis; marks it already has are taken off.
        today: Which day it is; None for the present day, UTC.
    """
    day = today or datetime.now(timezone.utc).date()
    valid = [entry for entry in accepted.accepted if entry.until is None or day <= entry.until]
    by_fingerprint = _by_fingerprint(valid)
    used: set[int] = set()
    outgrown: dict[int, AcceptedFinding] = {}
    findings = []
    for finding in diagnosis.findings:
        candidates = by_fingerprint.get(fingerprint_of(finding), ())
        count = len(finding.evidence)
        entry = next((e for e in candidates if e.evidence_count is None or count <= e.evidence_count), None)
        if entry is None:
            outgrown.update((id(candidate), candidate) for candidate in candidates)
        else:
            used.add(id(entry))
        findings.append(msgspec.structs.replace(finding, accepted=None if entry is None else entry.reason))
    return Acceptance(
        diagnosis=msgspec.structs.replace(diagnosis, findings=tuple(findings)),
        gone=tuple(e for e in valid if id(e) not in used and id(e) not in outgrown and _is_judged(diagnosis, e)),
        expired=tuple(entry for entry in accepted.accepted if entry.until is not None and entry.until < day),
        outgrown=tuple(entry for key, entry in outgrown.items() if key not in used),
    )


def _by_fingerprint(entries: Iterable[AcceptedFinding]) -> dict[str, list[AcceptedFinding]]:
    found: dict[str, list[AcceptedFinding]] = {}
    for entry in entries:
        for key in {fingerprint(entry.code, entry.configuration, place) for place in (entry.place, *entry.also)}:
            found.setdefault(key, []).append(entry)
    return found


def _is_judged(diagnosis: Diagnosis, entry: AcceptedFinding) -> bool:
    """Whether this diagnosis would have the entry's finding if it were still there."""
    if diagnosis.interrupted is not None or entry.subject not in (None, diagnosis.subject.name):
        return False
    if entry.configuration is None:
        return True
    trial = diagnosis.find_trial(entry.configuration)
    return trial is not None and trial.status in ("ok", "same_as")


def accept_all(diagnosis: Diagnosis, previous: AcceptedFile | None = None) -> AcceptedFile:
    """
    A file that accepts every finding of a diagnosis, but for what is about its measurement, which fails nothing.

    Args:
        previous: The file that is to be replaced: its reasons stay where their findings do, and so do entries that
            this diagnosis cannot judge, as those of another model.
    """
    before = AcceptedFile() if previous is None else previous
    known = _by_fingerprint(before.accepted)
    entries: dict[str, AcceptedFinding] = {}
    for finding in diagnosis.findings:
        new = _entry(diagnosis, finding)
        old = next(iter(known.get(fingerprint_of(finding), ())), None)
        if old is not None:
            new = msgspec.structs.replace(new, reason=old.reason)
        entries.setdefault(_key(new), new)
        if entries[_key(new)].evidence_count != new.evidence_count:  # the same place twice: the larger one covers both
            entries[_key(new)] = max(entries[_key(new)], new, key=lambda entry: entry.evidence_count or 0)
    for old in before.accepted:
        if not _is_judged(diagnosis, old):
            entries.setdefault(_key(old), old)
    return AcceptedFile(layoutdoctor_version=__version__, accepted=tuple(sorted(entries.values(), key=_order)))


def _entry(diagnosis: Diagnosis, finding: Finding) -> AcceptedFinding:
    place = _place(finding.location, finding.module)
    also = dict.fromkeys(_places(diagnosis, finding))
    also.pop(place, None)
    return AcceptedFinding(
        code=finding.code,
        configuration=finding.configuration,
        module=place.module,
        file=place.file,
        line=place.code,
        subject=diagnosis.subject.name,
        evidence_count=len(finding.evidence),
        message=finding.message,
        also=tuple(sorted(also, key=str)),
        fingerprint=fingerprint_of(finding),
    )


def _places(diagnosis: Diagnosis, finding: Finding) -> Iterator[Place]:
    """Where the finding's evidence stands: one that names the costliest of several may name another one next time."""
    trial = diagnosis.find_trial(finding.configuration) if finding.configuration is not None else None
    if trial is None:
        return
    evidence = set(finding.evidence)
    for pair in trial.redundant_pairs:
        if evidence & {pair.first, pair.second}:
            yield _place(pair.location, pair.module)
    kernels = trial.kernels.conversions if trial.kernels is not None else ()
    for conversion in (*kernels, *(c for graph in trial.graphs for c in graph.conversions)):
        if conversion.id in evidence:
            yield _place(conversion.location, conversion.module)


def _key(entry: AcceptedFinding) -> str:
    """One entry for each finding of each subject: models that share code are accepted apart."""
    return f"{fingerprint(entry.code, entry.configuration, entry.place)} {entry.subject}"


def _order(entry: AcceptedFinding) -> tuple[str, ...]:
    parts = (entry.code, entry.subject, entry.configuration, entry.file, entry.line, entry.module)
    return tuple(part or "" for part in parts)


class _SchemaVersion(msgspec.Struct):
    schema_version: int
    accepted: msgspec.Raw  # tells it from a diagnosis


def load_accepted(path: str | Path) -> AcceptedFile:
    """
    Reads a file of accepted findings.

    Args:
        path: What ``--write-accepted`` wrote, edited or not.

    Raises:
        RecordError: It cannot be read, is no such file, is of a newer form, or an entry contradicts itself.
    """
    doing = f"cannot read accepted findings from {str(path)!r}"
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecordError(f"{doing}: {error.strerror or error}; write them with --write-accepted") from error
    if len(data) > MOST_BYTES:
        raise RecordError(
            f"{doing}: it has more than {MOST_BYTES >> 20} MiB, expected a file written by --write-accepted"
        )
    try:
        version = msgspec.json.decode(data, type=_SchemaVersion).schema_version
    except UNREADABLE as error:
        raise RecordError(f"{doing}: {error}; expected a file written by --write-accepted") from error
    if version != ACCEPTED_SCHEMA_VERSION:
        raise RecordError(
            f"{doing}: it has schema_version {version}, expected {ACCEPTED_SCHEMA_VERSION}; "
            "use the layoutdoctor version that wrote it"
        )
    try:
        accepted = msgspec.json.decode(data, type=AcceptedFile)
    except UNREADABLE as error:
        raise RecordError(f"{doing}: {error}; mend the entry, or write the file again") from error
    for number, entry in enumerate(accepted.accepted):
        expected = fingerprint(entry.code, entry.configuration, entry.place)
        if entry.fingerprint not in (None, expected):
            raise RecordError(
                f"{doing}: accepted[{number}] ({entry}) has fingerprint {entry.fingerprint!r}, expected {expected!r}: "
                "its code, configuration, module, file or line was changed; undo that, or remove the fingerprint"
            )
    return accepted


def save_accepted(path: str | Path, accepted: AcceptedFile) -> None:
    """
    Writes a file of accepted findings; a reader sees the old one or the new one, never half of one.

    Raises:
        OSError: It could not be written.
    """
    with replacing(Path(path)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(printable(msgspec.to_builtins(accepted))), indent=2))
        stream.write(b"\n")
