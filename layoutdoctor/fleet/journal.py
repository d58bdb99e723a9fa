"""What an earlier scan found, kept as lines of JSON in a folder, so that a scan that was ended goes on where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.saved import encoded
from layoutdoctor.diagnosis.scan import ScannedRows
from layoutdoctor.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "files.jsonl"


class _File(msgspec.Struct):
    name: str


class _Line(msgspec.Struct):
    file: _File
    digest: str | None = None
    layoutdoctor_version: str | None = None


class Journal:
    """
    The results of a folder; in memory is where each begins, not what it says.

    Raises:
        UsageError: The folder cannot be made, or its file not be read and written.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[str, int]] = {}
        path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("a+b")
            self._read()
        except OSError as error:
            raise UsageError(f"cannot resume from {str(folder)!r}: {error.strerror or error}") from error

    def digest_of(self, name: str) -> str | None:
        """Of the content of a file that was examined by this version; None where it was not."""
        return self._places[name][0] if name in self._places else None

    def result_of(self, name: str) -> ScannedRows:
        """What was found in a file of which there is a digest."""
        self._stream.seek(self._places[name][1])
        return msgspec.json.decode(self._stream.readline(), type=ScannedRows)

    def add(self, found: ScannedRows) -> None:
        """Keeps what was found in a file."""
        self._stream.write(encoded(found))
        self._stream.flush()

    def close(self) -> None:
        """Ends the writing."""
        self._stream.close()

    def _read(self) -> None:
        """Where each result begins; the last line is taken away where it was not written to its end."""
        self._stream.seek(0)
        start = 0
        for line in self._stream:
            if not line.endswith(b"\n"):
                self._stream.truncate(start)
                break
            try:
                found = msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:  # edited by hand: examined again
                found = _Line(_File(""))
            if found.digest is not None and found.layoutdoctor_version == __version__:
                self._places[found.file.name] = (found.digest, start)
            start += len(line)
