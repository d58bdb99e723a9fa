"""
Makes folders for the temporary files of one run.

A run that is killed leaves its folder behind, and the next run removes it. A file in each folder names its maker, the
process that made it. A folder is removed only if its maker ran under the same user, in the same boot and container, and
has certainly ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

import msgspec

from layoutdoctor.errors import TransportError

_PREFIX = "layoutdoctor-"
_OWNER = ".layoutdoctor-owner.json"
_MOST_OWNER_BYTES = 1000
_SAME_START_SECONDS = 60.0
"""Largest difference between two readings of the start time of one process: the system's clock may be set meanwhile."""


class _Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that made a folder; ``pid`` is unique only within one boot and one namespace."""

    pid: int
    started: float
    boot: str
    namespace: int
    user: int

    @classmethod
    def this_process(cls) -> _Owner | None:
        """Describes this process; None if the system does not identify boots and namespaces."""
        import psutil  # imported only to make a folder

        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = Path("/proc/self/ns/pid").stat().st_ino
            return cls(os.getpid(), psutil.Process().create_time(), boot, namespace, os.getuid())
        except (OSError, ValueError, AttributeError, psutil.Error):
            return None

    def is_dead(self, seen_by: _Owner) -> bool:
        """Whether the process has certainly ended; False for another boot, namespace or user."""
        import psutil

        if (self.boot, self.namespace, self.user) != (seen_by.boot, seen_by.namespace, seen_by.user) or self.pid <= 0:
            return False
        try:
            started = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False
        return abs(started - self.started) > _SAME_START_SECONDS


def private_directory() -> tempfile.TemporaryDirectory[str]:
    """
    Makes a folder for temporary files that only this user can enter. Removes the folders of killed runs.

    Raises:
        TransportError: The folder cannot be made.
    """
    owner = _Owner.this_process()
    if owner is not None:
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if _is_left(path, owner):
                shutil.rmtree(path, ignore_errors=True)
    try:
        made = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
        if owner is not None:
            (Path(made.name) / _OWNER).write_bytes(msgspec.json.encode(owner))
    except OSError as error:
        raise TransportError(
            f"cannot make a folder for temporary files in {tempfile.gettempdir()!r}: {error.strerror or error}; "
            "set TMPDIR to a folder with room"
        ) from error
    return made


def _is_left(folder: Path, seen_by: _Owner) -> bool:
    """Whether a folder was made by ``private_directory``, in a process of this user that has ended."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != seen_by.user or stat.S_IMODE(found.st_mode) != 0o700:
            return False
        descriptor = os.open(folder / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            marker = os.fstat(descriptor)
            if not stat.S_ISREG(marker.st_mode) or marker.st_uid != seen_by.user:
                return False
            return msgspec.json.decode(stream.read(_MOST_OWNER_BYTES), type=_Owner).is_dead(seen_by)
    return False
