"""
Files are written under a private random name and renamed: a reader sees the old one or the new one, each whole.

Only regular files are read or replaced.
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
    A stream whose content takes the place of a file when the block ends; if the block raises, nothing is left.

    A link is replaced and not followed. A file that is replaced keeps its permissions.

    Raises:
        OSError: It could not be written, or ``path`` is there and no file.
    """
    mode = mode_of_file(path)
    temporary = path.with_name(f".layoutdoctor-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            mode = mode or stat.S_IMODE(os.fstat(descriptor).st_mode)  # what the user's mask leaves to a new file
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
    The permissions of the file that is to be replaced; None if there is none, or a link.

    Raises:
        OSError: It is a directory, a pipe or a device, or no such name is possible.
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
    A file to be read: nobody waits for a pipe, or reads a device without an end.

    Raises:
        OSError: It cannot be read, is a directory, a pipe or a device, or no such name is possible.
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
        OSError: As for ``replacing``.
    """
    data = text.encode("utf-8", "backslashreplace")
    with replacing(path) as stream:
        stream.write(gzip.compress(data, mtime=0) if is_packed_name(path) else data)


def is_packed_name(name: str | PurePath) -> bool:
    """Whether a file of this name is gzipped."""
    return str(name).lower().endswith(".gz")


def printable(value: object) -> object:
    """A plain value with lone surrogates, which no UTF-8 has, as their escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def file_name_of(name: str) -> str:
    """A name as the name of a file: a plain one as it is, any other one made so that it leads nowhere else."""
    plain = _IN_FILE_NAMES.sub("_", name)[:_LONGEST_FILE_NAME]
    if plain == name and name.strip(".") and not name.startswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain.lstrip('.') or 'file'}-{digest}"
