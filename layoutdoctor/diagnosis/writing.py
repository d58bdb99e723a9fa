"""How a file is written so that a reader sees the old one or the new one, never half of one. Imports nothing."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_MOST_LINKS = 40
"""As many as Linux follows."""

_PERMISSIONS = 0o777
_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.+=,@-]")
_LONGEST_FILE_NAME = 120

TRACE_SUFFIX = ".json.gz"


@contextlib.contextmanager
def replacing(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """
    A stream whose content takes the place of a file when the block ends; where the block raises, nothing is left.

    Until then the content stands in a file beside it that nobody else can read. A file that was there keeps its
    permissions, and its owner where that is possible; a new one gets those that any new file gets.

    Args:
        path: Which file; a pipe or a device is written to.
        follow: Whether a link stays a link and what it points to is replaced, else the link itself is replaced.

    Raises:
        OSError: It could not be written, or ``path`` is a link of somebody else in a directory for everybody.
    """
    target = target_of(path) if follow else path
    if _is_pipe_or_device(target):
        with os.fdopen(_opened_without_waiting(target), "wb") as stream:
            yield stream
        return
    descriptor, name = tempfile.mkstemp(prefix=".layoutdoctor-", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            _set_permissions(descriptor, target)
            os.fsync(descriptor)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, text: str, *, follow: bool = True, is_packed: bool = False) -> None:
    """
    Writes a text file as ``replacing`` does.

    Args:
        is_packed: Whether it is gzipped.

    Raises:
        OSError: As for ``replacing``.
    """
    data = text.encode("utf-8", "backslashreplace")
    with replacing(path, follow=follow) as stream:
        stream.write(gzip.compress(data, mtime=0) if is_packed else data)


def is_packed_name(name: str | PurePath) -> bool:
    """Whether a file of this name is gzipped."""
    return str(name).lower().endswith(".gz")


def target_of(path: Path) -> Path:
    """
    The file that a path leads to through links; no link itself, and perhaps not there.

    Where everybody may write, a link of somebody else is not followed: it may lead to a file that only this user can
    write. (Linux refuses to open such a link by itself, but a file is replaced without opening it.)

    Raises:
        OSError: A link on the way belongs to somebody else in a directory for everybody, or links lead in a circle.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path
        directory = path.parent.stat()
        is_for_all = directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH
        if is_for_all and path.lstat().st_uid not in (os.geteuid(), directory.st_uid):
            raise PermissionError(errno.EACCES, "it is a link of somebody else in a directory for everybody", str(path))
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


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


def trace_name(configuration: str) -> str:
    """The name of the file that keeps a configuration's profiler trace."""
    return f"{file_name_of(configuration)}{TRACE_SUFFIX}"


def check_directory(directory: Path) -> Path:
    """
    Proves that a file can be made in a directory, by making one and removing it.

    Returns:
        Where it was: a name that nobody else has.

    Raises:
        OSError: It cannot.
    """
    descriptor, name = tempfile.mkstemp(prefix=".layoutdoctor-", suffix=".tmp", dir=directory)
    os.close(descriptor)
    path = Path(name)
    path.unlink()
    return path


def _opened_without_waiting(target: Path) -> int:
    try:
        descriptor = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "it is a pipe that nobody reads from", str(target)) from error
    os.set_blocking(descriptor, True)
    return descriptor


def _is_pipe_or_device(path: Path) -> bool:
    return not path.is_symlink() and path.exists() and not path.is_file() and not path.is_dir()


def _set_permissions(descriptor: int, target: Path) -> None:
    """Those of the file that is replaced; else those that the user's mask leaves to a new file."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        os.fchmod(descriptor, _permissions_of_a_new_file(target.parent))
        return
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):  # only the superuser may give files away
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, found.st_mode & _PERMISSIONS)


def _permissions_of_a_new_file(directory: Path) -> int:
    """Asked of the system with an empty file: the mask can be read by changing it only, for every thread at once."""
    path = check_directory(directory)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        return os.fstat(descriptor).st_mode & _PERMISSIONS
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
