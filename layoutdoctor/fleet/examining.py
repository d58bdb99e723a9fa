"""One recorded run of many: read, examined, judged by the rules, and reduced to what can be added up."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.scan import ScanFinding, ScannedFile, ScannedRows, ScanRow
from layoutdoctor.errors import LayoutDoctorError, first_line
from layoutdoctor.examination.changes.traces import loose_name
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.fleet.sources import Source, local_file
from layoutdoctor.privacy import scrub
from layoutdoctor.recording.reading import garbage_collection_paused, read_recorded
from layoutdoctor.recording.recording import NONE
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, KernelSummary
    from layoutdoctor.recording.recording import Recording

NANOSECONDS_PER_SECOND = 1_000_000_000
_DIGEST_BYTES = 16
_PIECE_BYTES = 1 << 20
_MOST_LACKS = 5


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a worker is to do with one source; small, so that it travels.

    Attributes:
        digest: Of the content that was examined before: the same content is not examined again.
        is_resumable: Whether the digest of the content is wanted.
    """

    source: Source
    max_bytes: int = DEFAULT_MOST_BYTES
    digest: str | None = None
    is_resumable: bool = False


def examine_source(work: Work) -> ScannedRows | None:
    """
    Everything of one recorded run that can be added up.

    Returns:
        The file and its rows, ``failure`` set where it could not be examined: this never raises for what a file holds.
        None where its content is that of ``work.digest``.
    """
    source = work.source
    if source.failure is not None:
        return _failed(source, source.failure)
    size: int | None = None
    digest: str | None = None
    try:
        with local_file(source, work.max_bytes) as path:
            size = path.stat().st_size if path.is_file() else None
            if work.is_resumable and size is not None:
                digest = _digest_of(path)
                if digest == work.digest:
                    return None
            with garbage_collection_paused():
                recording = read_recorded(path, work.max_bytes)
                diagnosis = diagnosis_of([recording])
                diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
                found = _reduced(source, recording, diagnosis, size)
    except (LayoutDoctorError, OSError) as error:
        return _failed(source, first_line(error).partition(": ")[2], size, digest)
    except MemoryError:
        return _failed(source, "there is not enough memory to examine it", size, digest)
    except Exception as error:  # a fault of ours costs this file, not the others
        return _failed(source, f"layoutdoctor failed: {first_line(error)}; please report it", size, digest)
    return scrub(msgspec.structs.replace(found, digest=digest))


def _failed(source: Source, why: str, size: int | None = None, digest: str | None = None) -> ScannedRows:
    file = ScannedFile(name=source.name, rank=_rank(source, None), file_bytes=size, failure=why)
    return scrub(ScannedRows(digest=digest, file=file))


def _digest_of(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _rank(source: Source, recorded: object) -> int | None:
    """By the name, else by what the trace says of itself, else by the folder."""
    known = (source.rank, recorded if isinstance(recorded, int) else None, source.folder_rank)
    return next((rank for rank in known if rank is not None), None)


def _reduced(source: Source, recording: Recording, diagnosis: Diagnosis, size: int | None) -> ScannedRows:
    trial = diagnosis.trials[0]
    kernels = trial.kernels
    rows = _rows(recording, diagnosis)
    rules: dict[str, int] = {}
    for row in rows:
        if row.rule is not None:
            rules[row.rule] = rules.get(row.rule, 0) + row.nanoseconds
    counted = [row for row in rows if row.is_counted]
    file = ScannedFile(
        name=source.name,
        rank=_rank(source, _recorded_rank(recording)),
        file_bytes=size,
        torch=diagnosis.environment.torch,
        device_name=diagnosis.environment.device_name,
        conversion_count=sum(row.count for row in counted),
        conversion_nanoseconds=sum(row.nanoseconds for row in counted),
        exposed_nanoseconds=sum(row.exposed_nanoseconds or 0 for row in counted),
        findings=tuple(
            ScanFinding(code=found.code, severity=found.severity, message=found.message, nanoseconds=_ns(found.seconds))
            for found in diagnosis.findings
        ),
        rules=rules,
        **(_of_kernels(kernels) if kernels is not None else {}),  # type: ignore[arg-type]
    )
    return ScannedRows(file=file, rows=rows)


def _of_kernels(kernels: KernelSummary) -> dict[str, object]:
    waiting = kernels.waiting
    facts: dict[str, object] = {
        "kernel_count": kernels.count,
        "kernel_nanoseconds": _ns(kernels.seconds) or 0,
        "undecided_nanoseconds": _ns(kernels.undecided_seconds) or 0,
        "not_understood_count": kernels.not_understood_count,
        "lacks": kernels.lacks[:_MOST_LACKS],
    }
    if waiting is not None:
        facts |= {
            "device_count": waiting.device_count,
            "busy_nanoseconds": _ns(waiting.busy_seconds),
            "span_nanoseconds": _ns(waiting.span_seconds),
            "collective_nanoseconds": _ns(waiting.collective_seconds),
            "copy_nanoseconds": _ns(waiting.copy_seconds),
            "step_count": waiting.step_count,
            "step_nanoseconds": _ns(waiting.step_seconds),
            "bound_nanoseconds": _ns(waiting.conversion_bound_seconds),
            "waits_for": waiting.waits_for,
        }
    return facts


def _recorded_rank(recording: Recording) -> object:
    if not recording.iterations:
        return None
    recorded = recording.iterations[0].events.metadata.get("distributedInfo")
    return recorded.get("rank") if isinstance(recorded, dict) else None


def _rows(recording: Recording, diagnosis: Diagnosis) -> tuple[ScanRow, ...]:
    """The conversions, and what else a rule names, added up where they have everything in common."""
    trial = diagnosis.trials[0]
    counted = {conversion.id for conversion in counted_conversions(trial)}
    rule_of: dict[str, str] = {}
    for finding in sorted(diagnosis.findings, key=lambda finding: finding.code, reverse=True):
        rule_of.update(dict.fromkeys(finding.evidence, finding.code))
    device_of = _devices(recording)
    sums: dict[ScanRow, list[int | None]] = {}
    in_graphs = (conversion for graph in trial.graphs for conversion in graph.conversions)
    for conversion in (*(trial.kernels.conversions if trial.kernels is not None else ()), *in_graphs):
        if conversion.id in counted or conversion.id in rule_of:
            key = _key(conversion, rule_of, device_of, is_counted=conversion.id in counted)
            amounts = (
                conversion.count,
                _ns(conversion.seconds),
                _ns(conversion.exposed_seconds),
                conversion.bytes_moved,
            )
            sums[key] = [_added(*pair) for pair in zip(sums.get(key, [None] * 4), amounts, strict=True)]
    fields = ("count", "nanoseconds", "exposed_nanoseconds", "bytes_moved")
    return tuple(
        msgspec.structs.replace(key, **{**dict(zip(fields, amounts, strict=True)), "nanoseconds": amounts[1] or 0})
        for key, amounts in sums.items()
    )


def _key(
    conversion: Conversion,
    rule_of: Mapping[str, str],
    device_of: Mapping[tuple[int | None, int | None], int],
    *,
    is_counted: bool,
) -> ScanRow:
    """The row that a conversion belongs to, without amounts."""
    layout = conversion.source or conversion.target
    return ScanRow(
        rule=rule_of.get(conversion.id),
        step=conversion.step,
        device=device_of.get((conversion.stream, _ns(conversion.start_seconds))),
        owner=conversion.owner,
        kernel=loose_name(conversion.kernel) if conversion.kernel is not None else None,
        op=conversion.op,
        module=conversion.module,
        shape=layout.shape if layout is not None else None,
        direction=conversion.direction,
        is_counted=is_counted,
        count=0,
        nanoseconds=0,
    )


def _devices(recording: Recording) -> dict[tuple[int | None, int | None], int]:
    """By stream and start, which no two kernels of a device share, the device that ran it."""
    if not recording.iterations:
        return {}
    kernels = recording.iterations[0].events.kernels
    columns = (kernels.stream.tolist(), kernels.start.tolist(), kernels.device.tolist())
    return {(stream, start): device for stream, start, device in zip(*columns, strict=True) if device != NONE}


def _ns(seconds: float | None) -> int | None:
    """Whole nanoseconds, as they were recorded."""
    return None if seconds is None else round(seconds * NANOSECONDS_PER_SECOND)


def _added(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else first + second
