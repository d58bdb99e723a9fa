"""
Folders for the temporary files of one run.

A run that is killed leaves its folder behind; the next run removes it. A folder says in a file within who made it, and
only what is proved to be left by a process of this machine, boot, container and user that is dead is removed.
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
"""The system's clock may be set while a process runs, and its start is then told differently."""


class _Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that made a folder; ``pid`` has a meaning within one boot and one namespace only."""

    pid: int
    started: float
    boot: str
    namespace: int
    user: int

    @classmethod
    def this_process(cls) -> _Owner | None:
        """This process; None where the system does not tell boots and namespaces apart."""
        import psutil  # late: most of what reads and writes files makes no folder

        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = Path("/proc/self/ns/pid").stat().st_ino
            return cls(os.getpid(), psutil.Process().create_time(), boot, namespace, os.getuid())
        except (OSError, ValueError, AttributeError, psutil.Error):
            return None

    def is_dead(self, seen_by: _Owner) -> bool:
        """Whether the process has ended, beyond doubt."""
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
    A folder for the files of one run, which this user alone can enter; those of runs that were killed are removed.

    Raises:
        TransportError: There is no room for one.
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
    """Whether a folder was made here for temporary files, by a process of this user that is dead."""
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
