"""
Opens somebody else's SQLite database and reads plain tables of it, row by row, without trusting a byte.

Source:
    sqlite.org, "Defense Against The Dark Arts", "URI Filenames", "The SQLite Database File Format".
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.recognize import SQLITE_MAGIC
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER_BYTES = 100
_SMALLEST_ROW_BYTES = 5
"""A row needs more than that in a file. One with more rows than that allows reads its pages over and over."""

_LONGEST_VALUE_BYTES = 16 << 20

_LARGEST = 1 << 62
"""Differences of two times below it fit 64 bits."""

_UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError)
"""What sqlite3 raises on damaged data; UnicodeError where its own message quotes them."""


def whole_number(value: object) -> int:
    """A whole number from a database; ``NONE`` for anything else."""
    return value if type(value) is int and 0 <= value < _LARGEST else NONE


def is_span(start: object, end: object) -> str | None:
    """What is wrong with an event's times, as the end of a sentence; None where they are right."""
    if type(start) is not int or type(end) is not int:
        return "whose times are no whole numbers"
    if not (-_LARGEST < start < _LARGEST and -_LARGEST < end < _LARGEST):
        return "whose times are too large"
    return "that end before they start" if end < start else None


def open_database(path: Path) -> Database:
    """
    Opens a database for reading.

    Raises:
        TraceError: It cannot be opened, is no SQLite database, is packed, or is shorter than its header says.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
        size = path.stat().st_size
        address = path.absolute().as_uri()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot read {str(path)!r}: {reason}; name an Nsight Systems export") from error
    if header.startswith(b"\x1f\x8b"):
        raise TraceError(f"cannot read {str(path)!r}: a packed database cannot be read in place; unpack it with gunzip")
    if not header.startswith(SQLITE_MAGIC):
        raise TraceError(
            f"cannot read {str(path)!r}: it is no SQLite database; make one with nsys export --type sqlite"
        )
    expected = _size_in_header(header)
    if size < expected:
        raise TraceError(
            f"cannot read {str(path)!r}: it has {size} bytes and its header says {expected}, so it was cut off; "
            "copy or export it again"
        )
    return Database(path, address, size)


def _size_in_header(header: bytes) -> int:
    """Bytes a database should have; 0 where its header does not say."""
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    page = int.from_bytes(header[16:18], "big")
    is_counted = header[24:28] == header[92:96]  # else an old program wrote last, and left the count as it was
    return (1 << 16 if page == 1 else page) * int.from_bytes(header[28:32], "big") if is_counted else 0


class Database:
    """
    An open database.

    Attributes:
        row_count: Rows of events read so far.
        damaged: Tables that ended in damage, in the order they were read.
    """

    def __init__(self, path: Path, address: str, size_bytes: int) -> None:
        self.row_count = 0
        self.damaged: list[str] = []
        self._path = path
        self._most_rows = size_bytes // _SMALLEST_ROW_BYTES
        try:
            # Immutable: no lock, no journal, nothing is written beside the file.
            self._connection = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self._connection.text_factory = _text
        limit = getattr(self._connection, "setlimit", None)  # from Python 3.11 on
        if limit is not None:  # a column may be computed by an expression of the file's
            limit(getattr(sqlite3, "SQLITE_LIMIT_LENGTH", 0), _LONGEST_VALUE_BYTES)

    def tables(self) -> frozenset[str]:
        """
        The names of the plain tables: no views, which would run a statement of the file's, and no virtual ones.

        Raises:
            TraceError: The schema cannot be read.
        """
        try:
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            found = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
            return frozenset(name for (name,) in found if isinstance(name, str))
        except _UNREADABLE as error:
            self.close()
            raise self._unreadable(error) from error

    def rows(self, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """
        The rows of a table in the order they are stored, up to the first damaged page.

        Args:
            columns: What is wanted; a column that the table does not have is None in every row.
        """
        try:
            there = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
            chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
            for count, row in enumerate(self._connection.execute(f'SELECT {chosen} FROM "{table}"')):
                if count > self._most_rows:
                    self.damaged.append(table)
                    return
                self.row_count += 1
                yield row
        except _UNREADABLE:
            self.damaged.append(table)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _unreadable(self, error: Exception) -> TraceError:
        return TraceError(
            f"cannot read {str(self._path)!r}: its SQLite database is damaged ({str(error)[:200]}); "
            "make it again with nsys export --type sqlite"
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
