"""The conversions of every file, written as it ends: a line of JSON each, or rows of a Parquet file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.saved import encoded, reason_of
from layoutdoctor.diagnosis.scan import ScannedRows
from layoutdoctor.diagnosis.writing import replacing
from layoutdoctor.errors import UsageError
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Add = Callable[[Sequence[ScannedRows]], None]

_ROWS_PER_GROUP = 100_000


def lines_file(path: Path, *, is_continued: bool = False) -> Add:
    """
    Writes each file with its rows as a line of JSON, which can be read at once; an old file goes with the first line.

    Args:
        is_continued: Whether lines that are there stay.
    """
    mode = "ab" if is_continued else "wb"

    def add(found: Sequence[ScannedRows]) -> None:
        nonlocal mode
        with path.open(mode) as stream:
            stream.write(b"".join(map(encoded, found)))
        mode = "ab"

    return add


def read_lines(path: Path) -> dict[str, list[ScannedRows]]:
    """
    What ``lines_file`` wrote with this version, by fingerprint; a last line that was not written to its end goes.

    Raises:
        UsageError: It holds something else.
    """
    found: dict[str, list[ScannedRows]] = {}
    data = path.read_bytes() if path.exists() else b""
    start = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            rows = msgspec.json.decode(line, type=ScannedRows)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if start and start + len(line) == len(data) and not line.endswith(b"\n"):
                with path.open("r+b") as stream:
                    stream.truncate(start)
                break
            raise UsageError(
                f"cannot resume from {str(path)!r}: line {number} is no result of a scan ({reason_of(error)}); "
                "name another folder"
            ) from error
        start += len(line)
        if rows.fingerprint is not None and rows.layoutdoctor_version == __version__:
            found.setdefault(rows.fingerprint, []).append(rows)
    return found


@contextlib.contextmanager
def parquet_file(path: Path) -> Iterator[Add]:
    """
    Writes rows as files end; the file is there once the block ends.

    Each row has the file's name, rank and device, the step, device index, rule, owner, kernel, op, module, shape and
    direction, whether it is counted, and count, seconds, exposed_seconds and bytes.

    Raises:
        UsageError: PyArrow is not installed.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"cannot write {path.name!r}: PyArrow is not installed; pip install 'layoutdoctor[fleet]'"
        ) from error
    text, whole = arrow.dictionary(arrow.int32(), arrow.string()), arrow.int64()
    fields = {"file": text, "rank": whole, "device_name": text, "step": text, "device": whole, "rule": text}
    fields |= dict.fromkeys(("owner", "kernel", "op", "module", "shape", "direction"), text)
    fields |= {"is_counted": arrow.bool_(), "count": whole, "seconds": arrow.float64()}
    fields |= {"exposed_seconds": arrow.float64(), "bytes": whole}
    schema = arrow.schema(list(fields.items()))
    rows: list[dict[str, Any]] = []
    with replacing(path) as stream, parquet.ParquetWriter(stream, schema, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(found: Sequence[ScannedRows]) -> None:
            rows.extend(row for one in found for row in _table_rows(one))
            if len(rows) >= _ROWS_PER_GROUP:
                flush()

        yield add
        flush()


def _table_rows(found: ScannedRows) -> Iterator[dict[str, Any]]:
    file = found.file
    for row in found.rows:
        exposed = row.exposed_nanoseconds
        yield {
            **{name: getattr(row, name) for name in _SAME},
            "file": file.name,
            "rank": file.rank,
            "device_name": file.device_name,
            "shape": None if row.shape is None else "x".join(map(str, row.shape)),
            "seconds": row.nanoseconds / NANOSECONDS_PER_SECOND,
            "exposed_seconds": None if exposed is None else exposed / NANOSECONDS_PER_SECOND,
            "bytes": row.bytes_moved,
        }


_SAME = ("step", "device", "rule", "owner", "kernel", "op", "module", "direction", "is_counted", "count")
