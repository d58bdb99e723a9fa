"""
What is kept on disk of a diagnosis under way, so that an interrupted run can be continued.

A directory of its own with MessagePack files: data, never code. A file is replaced as a whole, so that a reader sees
the old one or the new one.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from layoutdoctor.diagnosis.writing import replacing
from layoutdoctor.errors import UsageError
from layoutdoctor.isolation.messages import Kept, Lost, Message
from layoutdoctor.recording.saved import pack, unpack

if TYPE_CHECKING:
    from typing import BinaryIO

_RUN, _KEPT, _LOST, _FINISHED, _LOCK = "run.msgpack", "kept.msgpack", "lost.msgpack", "finished.msgpack", "lock"
_MOST_FILE_BYTES = 2**31

T = TypeVar("T")


class RunKey(Message, frozen=True, kw_only=True):
    """
    What has to be the same for a run to be continued.

    Attributes:
        layoutdoctor: Version, as the next two.
        processor: The processor's name and how many there are.
        source: Fingerprint of the target's file; None where it is no file.
        configurations: In order, each as text.
    """

    layoutdoctor: str
    torch: str | None
    python: str
    processor: str | None
    target: str
    source: str | None
    inputs: tuple[str, ...]
    device: str | None
    dtype: str | None
    mode: str
    configurations: tuple[str, ...]
    lower_for: str | None
    module: str | None = None
    config: tuple[str, ...] = ()


class Journal:
    """
    The directory, and what it held when it was opened.

    Attributes:
        directory: Where; None once nothing can be kept there.
        finished: What there is of the finished diagnosis; None where it is not.
        failure: Why nothing is kept any more; None where all went well.
    """

    def __init__(self, directory: Path, lock: BinaryIO | None, *, is_temporary: bool) -> None:
        self.directory = directory
        self.kept = Kept()
        self.lost: dict[str, Lost] = {}
        self.finished: Kept | None = None
        self.failure: str | None = None
        self._lock = lock
        self._is_temporary = is_temporary

    def keep(self, kept: Kept) -> None:
        """Keeps all that is done."""
        self.kept = kept
        self._write(_KEPT, kept)

    def lose(self, configuration: str, lost: Lost) -> None:
        """Keeps that a configuration took its process with it."""
        self.lost[configuration] = lost
        self._write(_LOST, self.lost)

    def finish(self, kept: Kept) -> None:
        """Keeps the finished diagnosis."""
        self.kept = self.finished = kept
        self._write(_FINISHED, kept)

    @property
    def can_continue(self) -> bool:
        """Whether another run could go on from here."""
        return self.failure is None and bool(self.kept.recordings or self.lost)

    def close(self, *, is_needed: bool) -> None:
        """Lets go of the directory; a temporary one is removed unless somebody may want to continue from it."""
        if self._lock is not None:
            self._lock.close()  # the file stays: removing it would let two runs lock two files of that name
        if self._is_temporary and not is_needed:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, name: str, value: object) -> None:
        """A full disk costs the journal, not the diagnosis."""
        if self.failure is not None:
            return
        try:
            with replacing(self.directory / name, follow=False) as stream:
                stream.write(pack(value))
        except OSError as error:
            self.failure = f"cannot keep a journal in {str(self.directory)!r}: {error.strerror or error}"


def open_journal(name: str | None, key: RunKey) -> Journal:
    """
    The journal of a run that is continued or begun.

    Args:
        name: The directory; None for a temporary one.

    Raises:
        UsageError: The directory holds something else, or the journal of another run, is in use, or cannot be used.
    """
    if name is None:
        return temporary_journal(key)
    directory = Path(name)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        strangers = sorted(
            entry.name for entry in directory.iterdir() if entry.name not in (_RUN, _KEPT, _LOST, _FINISHED, _LOCK)
        )
        is_new = not (directory / _RUN).exists()
        if is_new and strangers:
            raise UsageError(
                f"cannot keep a journal in {name!r}: it is no journal and holds {strangers[0]!r}; name an empty or new "
                "directory, or the one that an interrupted run named"
            )
        journal = Journal(directory, _locked(directory, name), is_temporary=False)
    except OSError as error:
        raise UsageError(
            f"cannot keep a journal in {name!r}: {error.strerror or error}; name another directory"
        ) from error
    try:
        if is_new:
            journal._write(_RUN, key)
        else:
            _check_same_run(_read(directory / _RUN, RunKey), key, name)
            _fill(journal)
    except BaseException:
        journal.close(is_needed=True)
        raise
    return journal


def temporary_journal(key: RunKey | None = None) -> Journal:
    """
    A journal in a new directory of its own; without room for one, a journal that keeps nothing and says so.

    Without a key nobody can continue it.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="layoutdoctor-run-"))
    except OSError as error:
        journal = Journal(Path(tempfile.gettempdir()), None, is_temporary=False)
        journal.failure = f"cannot keep a journal in {tempfile.gettempdir()!r}: {error.strerror or error}"
        return journal
    journal = Journal(directory, None, is_temporary=True)
    if key is not None:
        journal._write(_RUN, key)
    return journal


def _fill(journal: Journal) -> None:
    directory = journal.directory
    if (directory / _KEPT).exists():
        journal.kept = _read(directory / _KEPT, Kept)
    if (directory / _LOST).exists():
        journal.lost = _read(directory / _LOST, dict[str, Lost])
    if (directory / _FINISHED).exists():
        journal.kept = journal.finished = _read(directory / _FINISHED, Kept)


def _read(path: Path, kind: type[T]) -> T:
    try:
        # A pipe in its place would have an ordinary open wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
                raise UsageError(
                    f"cannot continue from {str(path)!r}: it is no file of a journal; name another directory"
                )
            found: T = unpack(stream.read(), kind)
            return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(
            f"cannot continue from {str(path)!r}: it is damaged ({str(error).splitlines()[0]}); "
            "remove the directory to start anew"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot continue from {str(path)!r}: {error.strerror or error}") from error


def _check_same_run(before: RunKey, now: RunKey, name: str) -> None:
    different = [field for field in RunKey.__struct_fields__ if getattr(before, field) != getattr(now, field)]
    if not different:
        return
    field = different[0]
    if field == "source":
        what = f"{now.target} has changed since"
    else:
        told = [_shown(getattr(key, field)) for key in (before, now)]
        if field == "configurations":
            names = [", ".join(map(_name_in, key.configurations)) for key in (before, now)]
            told = names if names[0] != names[1] else told
        verbs = ("were", "they are") if isinstance(getattr(now, field), tuple) else ("was", "it is")
        what = f"its {field} {verbs[0]} {told[0]}, now {verbs[1]} {told[1]}"
    raise UsageError(
        f"cannot continue the run in {name!r}: {what}; give the command it was begun with, or another directory"
    )


def _name_in(configuration: str) -> str:
    """What a person calls a configuration that a key holds as text."""
    try:
        return msgspec.json.decode(configuration, type=_Named).name
    except msgspec.MsgspecError:
        return configuration


class _Named(msgspec.Struct):
    name: str


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _locked(directory: Path, name: str) -> BinaryIO | None:
    """An open file that keeps other runs out of the directory for as long as it is open."""
    try:
        import fcntl
    except ImportError:
        return None  # no such locks on this system
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    stream = os.fdopen(os.open(directory / _LOCK, flags, 0o600), "rb")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise UsageError(
            f"cannot continue the run in {name!r}: another run is using it now; wait for it, or name another directory"
        ) from None
    except OSError:
        pass  # a file system without locks
    return stream
