"""
Writes files under a private random name and then renames them, so that a reader sees the whole old or new file.

Only regular files are read; only regular files and symbolic links are replaced.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from typing import BinaryIO

_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.+=,@-]")
_LONGEST_FILE_NAME = 120

TRACE_SUFFIX = ".json.gz"
RECORDING_SUFFIX = ".recording"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """
    A block with a stream whose content replaces a file at the end of the block. If the block raises, nothing changes.

    A symbolic link is replaced and not followed. A replaced file keeps its permissions.

    Raises:
        OSError: The file cannot be written, or ``path`` names a directory, a pipe or a device.
    """
    mode = mode_of_file(path)
    temporary = path.with_name(f".layoutdoctor-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            mode = mode or stat.S_IMODE(os.fstat(descriptor).st_mode)  # a new file has permissions by the user's mask
            os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR)
            yield stream
            stream.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def mode_of_file(path: Path) -> int | None:
    """
    Returns the permissions of an existing file; None if there is no file, or if it is a symbolic link.

    Raises:
        OSError: The path names a directory, a pipe or a device, or cannot be looked up.
        ValueError: The path contains a NUL.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return None
    _check_regular(mode, path)
    return stat.S_IMODE(mode)


def _check_regular(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))


def opened(path: str | Path) -> BufferedReader:
    """
    Opens a regular file for reading. Pipes and devices are refused, because reading them may never end.

    Raises:
        OSError: The file cannot be read, is a directory, a pipe or a device, or its path contains a NUL.
    """
    try:
        _check_regular(os.stat(path).st_mode, path)  # noqa: PTH116 - a path may be a string
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    return open(path, "rb")  # noqa: PTH123


def write_file(path: Path, text: str) -> None:
    """
    Writes a text file as ``replacing`` does, gzipped if its name ends in ``.gz``.

    Raises:
        OSError: The file cannot be written, or ``path`` names a directory, a pipe or a device.
    """
    data = text.encode("utf-8", "backslashreplace")
    with replacing(path) as stream:
        stream.write(gzip.compress(data, mtime=0) if is_packed_name(path) else data)


def is_packed_name(name: str | PurePath) -> bool:
    """Whether a file with this name is gzipped."""
    return str(name).lower().endswith(".gz")


def printable(value: object) -> object:
    """Replaces lone surrogates, which UTF-8 cannot encode, by their escapes in strings, dicts and lists."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def file_name_of(name: str) -> str:
    """Makes a file name from any name. A short name of harmless characters is kept; any other name gets a hash."""
    plain = _IN_FILE_NAMES.sub("_", name)[:_LONGEST_FILE_NAME]
    if plain == name and name.strip(".") and not name.startswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain.lstrip('.') or 'file'}-{digest}"
