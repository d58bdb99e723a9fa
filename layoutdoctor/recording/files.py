"""
Opens a recorded file: its bytes in pieces, unpacked on the way, never more of them in memory than one piece.

A file can be missing, a folder, cut off, packed, or made to fill the memory; all of that is met here, so that the
readers see nothing but bytes.
"""

from __future__ import annotations

import stat
import zlib
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

PIECE_BYTES = 1 << 18
PACKED_PIECE_BYTES = 1 << 16
HEAD_BYTES = 1 << 16

MOST_WHITE_SPACE_BYTES = 64 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's way to say: expect a gzip header


class TraceFile:
    """
    The bytes of one recorded file, unpacked.

    Attributes:
        path: Where it is.
        most_bytes: How many unpacked bytes may be read.
        is_packed: Whether it is gzipped, whatever its name.
        is_cut: Whether the packed data end too early or are damaged; known once ``pieces`` has ended.
        byte_count: Unpacked bytes read so far.
    """

    def __init__(self, path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.is_packed = False
        self.is_cut = False
        self.byte_count = 0

    def head(self) -> bytes:
        """
        The first unpacked bytes, at most 64 KiB, with leading white space left out.

        Raises:
            TraceError: The file cannot be opened or read, or holds nothing.
        """
        found = b""
        try:
            for piece in self.pieces():
                found = (found + piece).lstrip()
                if len(found) >= HEAD_BYTES:
                    break
        finally:
            self.byte_count = 0
        if not found:
            cut = ", or cut off before its first byte" if self.is_packed else ""
            raise TraceError(f"{self._cannot_read()}: it is empty{cut}; name a recorded trace")
        return found[:HEAD_BYTES]

    def pieces(self) -> Iterator[bytes]:
        """
        The unpacked bytes in order, in pieces of about 256 KiB.

        Raises:
            TraceError: The file cannot be opened or read, is larger than allowed, or is nothing but white space.
        """
        self.byte_count = 0
        self.is_cut = False
        try:
            if not stat.S_ISREG(mode := self.path.stat().st_mode) and not stat.S_ISDIR(mode):
                raise TraceError(
                    f"{self._cannot_read()}: it is a pipe or a device, and a trace is read more than once; "
                    "write it to a file and name that"
                )
            with self.path.open("rb") as stream:
                start = stream.read(len(_GZIP_MAGIC))
                self.is_packed = start == _GZIP_MAGIC
                if self.is_packed:
                    yield from self._checked(self._unpacked(_read(start, stream, PACKED_PIECE_BYTES)))
                else:
                    yield from self._checked(_read(start, stream, PIECE_BYTES))
        except IsADirectoryError as error:
            raise TraceError(f"{self._cannot_read()}: it is a directory; name the trace file in it") from error
        except FileNotFoundError as error:
            raise TraceError(f"{self._cannot_read()}: there is no such file; check the path") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise TraceError(f"{self._cannot_read()}: {getattr(error, 'strerror', None) or error}") from error

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        is_blank = True
        for piece in pieces:
            self.byte_count += len(piece)
            if self.byte_count > self.most_bytes:
                raise TraceError(
                    f"{self._cannot_read()}: it has more than {format_bytes(self.most_bytes)}"
                    f"{' unpacked' if self.is_packed else ''}, which is the limit; if it is a trace all the same, "
                    f"raise the limit: --max-bytes {2 * self.most_bytes}"
                )
            is_blank = is_blank and not piece.strip()
            if is_blank and self.byte_count > MOST_WHITE_SPACE_BYTES:
                raise TraceError(
                    f"{self._cannot_read()}: its first {format_bytes(MOST_WHITE_SPACE_BYTES)} are white space; "
                    "expected a recorded trace"
                )
            yield piece

    def _unpacked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Any number of gzip members, one behind the other; what comes before damage is kept."""
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        is_begun = False
        for piece in pieces:
            pending = piece
            while pending:
                before = unpacker.copy()
                try:
                    unpacked = unpacker.decompress(pending, PIECE_BYTES)
                except zlib.error:
                    self.is_cut = is_begun or self.byte_count == 0  # else: something else behind the last member
                    yield from _up_to_damage(before, pending)
                    return
                is_begun = True
                if unpacked:
                    yield unpacked
                pending = unpacker.unconsumed_tail
                if unpacker.eof:
                    pending = unpacker.unused_data.lstrip(b"\0")
                    unpacker = zlib.decompressobj(_GZIP_WINDOW)
                    is_begun = False
        self.is_cut = is_begun
        if is_begun:
            yield from _up_to_damage(unpacker, b"")

    def _cannot_read(self) -> str:
        return f"cannot read {str(self.path)!r}"


def _read(start: bytes, stream: BinaryIO, piece_bytes: int) -> Iterator[bytes]:
    if start:
        yield start
    while piece := stream.read(piece_bytes):
        yield piece


def _up_to_damage(unpacker: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What can be unpacked before the damage: an unpacker that meets it keeps back what it unpacked in that call."""
    for place in range(max(1, len(packed))):
        pending = packed[place : place + 1]
        while True:
            try:
                unpacked = unpacker.decompress(pending, PIECE_BYTES)
            except zlib.error:
                return
            pending = unpacker.unconsumed_tail
            if not unpacked:
                break
            yield unpacked
