"""Scans many recorded runs: examines each once, adds up the results, and writes the conversions to files."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES, reason_of, to_json
from layoutdoctor.diagnosis.scan import ScannedRows, ScanSum
from layoutdoctor.errors import UsageError
from layoutdoctor.files.writing import opened, replacing
from layoutdoctor.fleet.engines import examined
from layoutdoctor.fleet.sources import find_sources, fingerprint_of, rank_reader, said_by
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from layoutdoctor.diagnosis.scan import Scan, ScannedFile, ScanRow
    from layoutdoctor.fleet.sources import Source

    Add = Callable[[Sequence[ScannedRows]], None]

_logger = logging.getLogger("layoutdoctor")
_ROWS_PER_GROUP = 100_000
_BYTES_WORTH_A_POOL = 20 << 20
RESULTS = "files.jsonl"
"""Name of the file in the folder of ``resume``. Its lines are the same as in an output that ends in .jsonl."""


def scan(
    *paths: str | os.PathLike[str],
    pattern: str | None = None,
    rank_regex: str | None = None,
    max_bytes: int = DEFAULT_MOST_BYTES,
    jobs: int | None = 1,
    scheduler: str | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    listener: Callable[[ScannedRows, int], None] | None = None,
) -> Scan:
    """
    Examines many recorded runs and adds up what they lost to layouts.

    The result is the same to the bit for any order of files, on this machine, a cluster or another executor.

    Args:
        paths: Files, folders, archives, patterns, and any URL of fsspec.
        pattern: Pattern of the file names to take in folders and archives. None takes the usual names of traces or, in
            a path without such files, the usual names of tables, logs and reports.
        rank_regex: Regular expression whose first group is the rank in a file's name below the common folder. None to
            find the rank in the name, else in the trace itself, else in the folder.
        max_bytes: Largest number of unpacked bytes to read of a file.
        jobs: Number of processes on this machine. None means one process per processor for large files, else one
            process. A script that asks for more than one process must guard its entry with
            ``if __name__ == "__main__":``.
        scheduler: Address of a Dask scheduler whose workers examine the files in place of this machine. The workers
            must be able to open the paths.
        executor: Any other executor that runs functions elsewhere.
        resume: A folder in which each result is kept when it is ready. A file that this version has examined before is
            only examined again if the file has changed.
        listener: Function that is called with each result when it is ready, and with the number of files so far known.
            The number of traces in an archive is known only when the archive has been examined.

    Raises:
        UsageError: There is nothing to scan, an argument is wrong, or the cluster or the folder cannot be used. A file
            that cannot be examined is no error: it is in ``Scan.failed``, with the reason.
        TransportError: With several processes, the folder for temporary files cannot be made.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"cannot scan with {jobs} processes: expected 1 or more")
    rank_of = rank_reader(rank_regex)
    sources = find_sources(paths, pattern=pattern, max_bytes=max_bytes)
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if _known_bytes(sources) > _BYTES_WORTH_A_POOL else 1
    kept: dict[str, list[ScannedRows]] = {}
    keep: Add | None = None
    if resume is not None:
        sources = tuple(msgspec.structs.replace(source, fingerprint=fingerprint_of(source)) for source in sources)
        kept, keep = _resumed(Path(resume) / RESULTS)
    total, file_count = ScanSum(), len(sources)

    def take(rows: Sequence[ScannedRows]) -> None:
        nonlocal file_count
        file_count += len(rows) - 1
        for found in rows:
            file = msgspec.structs.replace(found.file, rank=rank_of(found.file.name, found.file.rank))
            ranked = msgspec.structs.replace(found, file=file, fingerprint=None)
            total.add(ranked)
            if listener is not None:
                listener(ranked, file_count)

    for source in sources:
        if source.fingerprint in kept:
            take(kept[source.fingerprint])
    left = [source for source in sources if source.fingerprint not in kept]
    with examined(left, jobs=jobs, scheduler=scheduler, executor=executor) as results:
        for source, found in results:
            try:
                if keep is not None:
                    keep([msgspec.structs.replace(rows, fingerprint=source.fingerprint) for rows in found])
            except OSError as error:
                keep = None
                _logger.warning(
                    "warning: cannot keep results in %r: %s; the scan goes on without keeping them",
                    str(resume),
                    said_by(error),
                )
            take(found)
    return total.result()


def _resumed(path: Path) -> tuple[dict[str, list[ScannedRows]], Add]:
    """
    Returns the results of earlier scans in a file, by fingerprint, and a function that adds results to the file.

    Raises:
        UsageError: The file holds something else, or cannot be written.
    """
    found: dict[str, list[ScannedRows]] = {}
    data = b""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), opened(path) as stream:
            data = stream.read()
        lines = data.splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            try:
                rows = msgspec.json.decode(line, type=ScannedRows)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if 1 < number == len(lines) and not line.endswith(b"\n"):
                    break  # the scan ended while it wrote this line
                raise UsageError(
                    f"cannot resume from {str(path)!r}: line {number} is no result of a scan ({reason_of(error)}); "
                    "name another folder"
                ) from error
            if rows.fingerprint is not None and rows.layoutdoctor_version == __version__:
                found.setdefault(rows.fingerprint, []).append(rows)
        keep = lines_file(path)
        keep([rows for of_file in found.values() for rows in of_file])
    except (OSError, ValueError, RecursionError) as error:  # a NUL in the path; a folder in a thousand other folders
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot resume from {str(path.parent)!r}: {reason}; name another folder") from error
    return found, keep


def _known_bytes(sources: Sequence[Source]) -> float:
    """Returns the total size of the sources on disk; infinity if a source is a URL."""
    total = 0.0
    for path in {source.path for source in sources}:
        if "://" in path:
            return float("inf")
        with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL in the path
            total += Path(path).stat().st_size
    return total


def lines_file(path: Path) -> Add:
    """Returns a function that writes each result as a line of JSON; its first call replaces an old file."""
    is_begun = False

    def add(found: Sequence[ScannedRows]) -> None:
        nonlocal is_begun
        with path.open("ab") if is_begun else replacing(path) as stream:
            stream.write(b"".join(map(to_json, found)))
        is_begun = True

    return add


@contextlib.contextmanager
def parquet_file(path: Path) -> Iterator[Add]:
    """
    A block with a function that writes rows with the columns of ``_TABLE``; the file appears when the block ends.

    Raises:
        UsageError: PyArrow is not installed.
        OSError: The file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"cannot write {path.name!r}: PyArrow is not installed; pip install 'layoutdoctor[fleet]'"
        ) from error
    kinds = {str: arrow.dictionary(arrow.int32(), arrow.string()), int: arrow.int64(), float: arrow.float64()}
    kinds[bool] = arrow.bool_()
    schema = arrow.schema([(name, kinds[kind]) for name, (kind, _) in _TABLE.items()])
    rows: list[dict[str, Any]] = []
    with replacing(path) as stream, parquet.ParquetWriter(stream, schema, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(found: Sequence[ScannedRows]) -> None:
            for one in found:
                rows.extend({name: get(one.file, row) for name, (_, get) in _TABLE.items()} for row in one.rows)
            if len(rows) >= _ROWS_PER_GROUP:
                flush()

        yield add
        flush()


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS_PER_SECOND


_TABLE: dict[str, tuple[type, Callable[[ScannedFile, ScanRow], object]]] = {
    "file": (str, lambda file, row: file.name),
    "rank": (int, lambda file, row: file.rank),
    "device_name": (str, lambda file, row: file.device_name),
    "step": (str, lambda file, row: row.step),
    "device": (int, lambda file, row: row.device),
    "rule": (str, lambda file, row: row.rule),
    "owner": (str, lambda file, row: row.owner),
    "kernel": (str, lambda file, row: row.kernel),
    "op": (str, lambda file, row: row.op),
    "module": (str, lambda file, row: row.module),
    "shape": (str, lambda file, row: None if row.shape is None else "x".join(map(str, row.shape))),
    "direction": (str, lambda file, row: row.direction),
    "is_counted": (bool, lambda file, row: row.is_counted),
    "count": (int, lambda file, row: row.count),
    "seconds": (float, lambda file, row: _seconds(row.nanoseconds)),
    "exposed_seconds": (float, lambda file, row: _seconds(row.exposed_nanoseconds)),
    "bytes": (int, lambda file, row: row.bytes_moved),
}
"""The columns of the Parquet file: the type of each column, and the function that returns its value."""
