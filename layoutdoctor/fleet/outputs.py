"""Where the conversions of every file go as it ends: a line of JSON each, or rows of a Parquet file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis.saved import encoded
from layoutdoctor.errors import UsageError
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.scan import ScannedRows

_ROWS_PER_GROUP = 100_000


class LinesFile:
    """Writes each file with its rows as a line of JSON, which can be read at once."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")

    def add(self, found: ScannedRows) -> None:
        """Adds one file."""
        self._stream.write(encoded(found))
        self._stream.flush()

    def close(self) -> None:
        """Ends the file."""
        self._stream.close()

    def discard(self) -> None:
        """Keeps what is there: every line is whole."""
        with contextlib.suppress(OSError):  # the disk may be full
            self._stream.close()


class ParquetTable:
    """
    Writes rows as files end; the file is there once it is closed.

    Each row has the file's name, rank and device, the step, device index, rule, owner, kernel, op, module, shape and
    direction, whether it is counted, and count, seconds, exposed_seconds and bytes.

    Raises:
        UsageError: PyArrow is not installed.
    """

    def __init__(self, path: Path) -> None:
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
        self._arrow = arrow
        self._schema = arrow.schema(list(fields.items()))
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._writer = parquet.ParquetWriter(self._part, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, found: ScannedRows) -> None:
        """Adds one file's rows."""
        file = found.file
        for row in found.rows:
            exposed = row.exposed_nanoseconds
            self._rows.append(
                {
                    "file": file.name,
                    "rank": file.rank,
                    "device_name": file.device_name,
                    "step": row.step,
                    "device": row.device,
                    "rule": row.rule,
                    "owner": row.owner,
                    "kernel": row.kernel,
                    "op": row.op,
                    "module": row.module,
                    "shape": None if row.shape is None else "x".join(map(str, row.shape)),
                    "direction": row.direction,
                    "is_counted": row.is_counted,
                    "count": row.count,
                    "seconds": row.nanoseconds / NANOSECONDS_PER_SECOND,
                    "exposed_seconds": None if exposed is None else exposed / NANOSECONDS_PER_SECOND,
                    "bytes": row.bytes_moved,
                }
            )
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Writes what is left, and gives the file its name."""
        self._flush()
        self._writer.close()
        self._part.replace(self._path)

    def discard(self) -> None:
        """Leaves nothing behind."""
        with contextlib.suppress(Exception):  # the disk may be full
            self._writer.close()
        self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()
