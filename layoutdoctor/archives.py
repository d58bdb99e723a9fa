"""
A zip archive of somebody else's, read as data: its entries are named, bounded and checked before one is used.

Nothing is unpacked to the disk. Faces whatever reads archives, today the loading of exported programs; imports nothing.

Source:
    PKWARE's APPNOTE for the fields of an entry. torch's own reader (``PyTorchFileReader``) compares names without
    regard to case, looks at no check sum and follows whatever the directory says.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_ENTRIES = 200_000
_UNPACKED_PER_BYTE = 8
"""torch packs nothing; a file packed again by somebody seldom has more than this times its size."""

_UNPACKED_ANYWAY = 64 << 20
_PIECE_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30
_END_RECORD_BYTES = 22
_END_MAGIC = b"PK\x05\x06"
_ENCRYPTED = 1
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    UnicodeError,
    ValueError,
)
"""What zipfile raises on damaged archives, and on ones that it cannot unpack."""


class DamagedFileError(ValueError):
    """The file is not what it should be, or only a part of it; says what it is."""


class ForbiddenPartError(ValueError):
    """Reading a part of the file could run code; says what was found."""


class Archive:
    """
    A zip archive whose directory was found in order.

    Attributes:
        names: Its entries without the folder that all of them stand in.
    """

    def __init__(self, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]) -> None:
        self.names = tuple(entries)
        self._archive = archive
        self._entries = entries

    def size(self, name: str) -> int:
        """
        Unpacked bytes of an entry.

        Args:
            name: One of ``names``.
        """
        return self._entries[name].file_size

    def read(self, name: str, most_bytes: int) -> bytes:
        """
        An entry.

        Args:
            name: One of ``names``.
            most_bytes: How many it may have.

        Raises:
            DamagedFileError: It is longer, or its check sum is wrong.
        """
        if self.size(name) > most_bytes:
            raise DamagedFileError(f"its part {name!r} has {self.size(name)} bytes, more than the {most_bytes} allowed")
        try:
            with self._archive.open(self._entries[name]) as stream:
                return stream.read(self.size(name) + 1)
        except _UNREADABLE as error:
            raise DamagedFileError(f"its part {name!r} is damaged ({_reason(error)})") from error

    def check_sums(self) -> None:
        """
        Reads every entry once.

        Raises:
            DamagedFileError: The bytes of one are not those that were written.
        """
        for name, entry in self._entries.items():
            try:
                with self._archive.open(entry) as stream:
                    while stream.read(_PIECE_BYTES):
                        pass
            except _UNREADABLE as error:
                raise DamagedFileError(f"its part {name!r} is damaged ({_reason(error)})") from error


def open_archive(stream: BinaryIO, byte_count: int) -> Archive:
    """
    The archive in a stream, where its directory holds nothing that could mislead a reader.

    Args:
        stream: Positioned anywhere; it stays open.
        byte_count: How many bytes it has.

    Raises:
        DamagedFileError: It is no zip archive, or one that is cut off.
        ForbiddenPartError: A name leads out of the archive or stands twice, an entry is a link, two entries share
            bytes, or it would unpack to far more than it is.
    """
    try:
        stream.seek(-_END_RECORD_BYTES, io.SEEK_END)
        end = stream.read()
        archive = zipfile.ZipFile(stream)
        entries = archive.infolist()
    except _UNREADABLE as error:
        raise DamagedFileError(f"its zip archive is cut off or damaged ({_reason(error)})") from error
    if not 0 < len(entries) <= _MOST_ENTRIES:
        raise DamagedFileError(f"its zip archive has {len(entries)} parts")
    if not end.startswith(_END_MAGIC) or min(entry.header_offset for entry in entries) > 0:
        # Two readers may find two archives in it, such as the one that is a part of this one.
        raise DamagedFileError("its zip archive is cut off, or something stands before or behind it")
    for entry in entries:
        _check_entry(entry)
    _check_sizes(entries, byte_count)
    return Archive(archive, _by_name(entries))


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = entry.orig_filename  # as it stands in the file; the other one ends at a NUL
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or ":" in parts[0] or {"", ".", ".."} & set(parts):
        raise ForbiddenPartError(f"a part named {name[:200]!r}, which is no plain path in the archive")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise ForbiddenPartError(f"a part {name[:200]!r} that is a link or a device")
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DamagedFileError(f"its part {name[:200]!r} is encrypted or packed in a way that torch does not use")
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        raise DamagedFileError(f"its part {name[:200]!r} has two lengths")


def _check_sizes(entries: list[zipfile.ZipInfo], byte_count: int) -> None:
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > _UNPACKED_PER_BYTE * byte_count + _UNPACKED_ANYWAY:
        raise ForbiddenPartError(f"{byte_count} bytes that would unpack to {unpacked}")
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise ForbiddenPartError(f"a part {entry.filename[:200]!r} that shares its bytes with another one")
        end = entry.header_offset + _LOCAL_HEADER_BYTES + len(entry.filename) + entry.compress_size


def _by_name(entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """The entries by name, without the folder that all of them share, where they do."""
    seen: set[str] = set()
    for entry in entries:
        if entry.filename.casefold() in seen:
            raise ForbiddenPartError(f"two parts named {entry.filename[:200]!r}")
        seen.add(entry.filename.casefold())
    folder, slash, _ = entries[0].filename.partition("/")
    prefix = folder + slash
    if not slash or not all(entry.filename.startswith(prefix) for entry in entries):
        prefix = ""
    return {entry.filename.removeprefix(prefix): entry for entry in entries}


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__
