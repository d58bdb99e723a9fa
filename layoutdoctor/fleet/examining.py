"""Examines one recorded run of many: reads it, applies the rules, and reduces the result to numbers for a sum."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Conversion, Diagnosis
from layoutdoctor.diagnosis.scan import ScannedFile, ScannedRows, ScanRow
from layoutdoctor.errors import LayoutDoctorError, first_line
from layoutdoctor.examination.changes.traces import loose_name
from layoutdoctor.examination.counts import counted_conversions, sum_of_known
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.files.writing import printable
from layoutdoctor.fleet.sources import LARGEST_RANK, is_archive, local_files, said_by
from layoutdoctor.privacy import scrub
from layoutdoctor.recording.reading import garbage_collection_paused, read_recorded, read_tables
from layoutdoctor.recording.recording import NONE
from layoutdoctor.rules import run_rules
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from layoutdoctor.fleet.sources import Source
    from layoutdoctor.recording.recording import Recording

_MOST_LACKS = 5


def examine_source(source: Source) -> list[ScannedRows]:
    """
    Examines a source. A file gives one result, an archive one for each trace, a text one for each of its tables.

    Any error becomes the ``failure`` of a result. An archive without traces has no result if the user did not name it.
    """
    if source.failure is not None:
        return [failed(source.name, source.failure)]
    found: list[ScannedRows] = []
    try:
        for name, path_of in local_files(source):
            try:
                path = path_of()
            except Exception as error:  # each file system has exceptions of its own
                found.append(failed(name, f"it cannot be read: {said_by(error)}"))
            else:
                found += _examined(name, path, source.max_bytes)
    except Exception as error:  # each kind of archive has exceptions of its own
        what = "the archive" if is_archive(source.path) else "it"
        found.append(failed(source.name, f"{what} cannot be read: {said_by(error)}"))
    if not found and source.is_named:
        found.append(
            failed(source.name, f"found no file that matches {' or '.join((*source.patterns, *source.rarer))}")
        )
    return found


def _examined(name: str, path: Path, max_bytes: int) -> list[ScannedRows]:
    size = path.stat().st_size if path.is_file() else None
    try:
        with garbage_collection_paused():
            if tables := read_tables(path, name, max_bytes):
                return [_of_recording(table.head.subject.name, table, size) for table in tables]
            return [_of_recording(name, read_recorded(path, max_bytes), size)]
    except (LayoutDoctorError, OSError) as error:
        return [failed(name, said_by(error), size)]
    except MemoryError:
        return [failed(name, "there is not enough memory to examine it", size)]
    except Exception as error:  # an error of layoutdoctor must not stop the other files
        return [failed(name, f"layoutdoctor failed: {first_line(error)}; please report it", size)]


def _of_recording(name: str, recording: Recording, size: int | None) -> ScannedRows:
    diagnosis = diagnosis_of([recording])
    diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    trial = diagnosis.trials[0]
    kernels = trial.kernel_summary
    rows = _rows(recording, diagnosis)
    counted = [row for row in rows if row.is_counted]
    file = ScannedFile(
        name=name,
        rank=_recorded_rank(recording),
        file_bytes=size,
        torch=diagnosis.environment.torch,
        device_name=diagnosis.environment.device_name,
        conversion_count=sum(row.count for row in counted),
        conversion_nanoseconds=sum(row.nanoseconds for row in counted),
        exposed_nanoseconds=sum(row.exposed_nanoseconds or 0 for row in counted),
        findings=tuple(msgspec.structs.replace(found, evidence=()) for found in diagnosis.findings),
        kernel_count=kernels.count,
        kernel_nanoseconds=_ns(kernels.seconds) or 0,
        undecided_nanoseconds=_ns(kernels.undecided_seconds) or 0,
        not_understood_count=kernels.not_understood_count,
        waiting=kernels.waiting,
        lacks=() if trial.kernels is None else kernels.lacks[:_MOST_LACKS],
    )
    return scrub(ScannedRows(file=file, rows=rows))


def failed(name: str, why: str, size: int | None = None) -> ScannedRows:
    """Makes the result of a file that could not be examined."""
    return scrub(ScannedRows(file=ScannedFile(name=name, file_bytes=size, failure=str(printable(why)))))


def _recorded_rank(recording: Recording) -> int | None:
    recorded = recording.iterations[0].events.metadata.get("distributedInfo") if recording.iterations else None
    rank = recorded.get("rank") if isinstance(recorded, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < LARGEST_RANK else None


def _rows(recording: Recording, diagnosis: Diagnosis) -> tuple[ScanRow, ...]:
    """Returns one row for each group of equal conversions that are counted or that a rule names."""
    trial = diagnosis.trials[0]
    counted = {conversion.id for conversion in counted_conversions(trial)}
    rule_of: dict[str, str] = {}
    for finding in sorted(diagnosis.findings, key=lambda finding: finding.code, reverse=True):
        rule_of.update(dict.fromkeys(finding.evidence, finding.code))
    device_of = _devices(recording)
    alike: dict[ScanRow, list[Conversion]] = {}
    in_graphs = (conversion for graph in trial.graphs for conversion in graph.conversions)
    for conversion in (*trial.kernel_summary.conversions, *in_graphs):
        if conversion.id in counted or conversion.id in rule_of:
            layout = conversion.source or conversion.target
            row = ScanRow(
                rule=rule_of.get(conversion.id),
                step=conversion.step,
                device=device_of.get((conversion.stream, _ns(conversion.start_seconds))),
                owner=conversion.owner,
                kernel=loose_name(conversion.kernel) if conversion.kernel is not None else None,
                op=conversion.op,
                module=conversion.module,
                shape=layout.shape if layout is not None else None,
                direction=conversion.direction,
                is_counted=conversion.id in counted,
                count=0,
                nanoseconds=0,
            )
            alike.setdefault(row, []).append(conversion)
    return tuple(
        msgspec.structs.replace(
            row,
            count=sum(conversion.count for conversion in conversions),
            nanoseconds=sum_of_known(_ns(conversion.seconds) for conversion in conversions) or 0,
            exposed_nanoseconds=sum_of_known(_ns(conversion.exposed_seconds) for conversion in conversions),
            bytes_moved=sum_of_known(conversion.bytes_moved for conversion in conversions),
        )
        for row, conversions in alike.items()
    )


def _devices(recording: Recording) -> dict[tuple[int | None, int | None], int]:
    """
    Returns the device of each kernel, by the kernel's stream and start, which no two kernels of a device share.

    If kernels of two devices share them, the device is left out.
    """
    found: dict[tuple[int | None, int | None], set[int]] = {}
    for kernels in (iteration.events.kernels for iteration in recording.iterations):
        columns = (kernels.stream.tolist(), kernels.start.tolist(), kernels.device.tolist())
        for stream, start, device in zip(*columns, strict=True):
            found.setdefault((stream, start), set()).add(device)
    return {key: device for key, (device, *others) in found.items() if device != NONE and not others}


def _ns(seconds: float | None) -> int | None:
    """Converts seconds back to the whole nanoseconds that were recorded."""
    return None if seconds is None else round(seconds * NANOSECONDS_PER_SECOND)
