"""``--resume``: continues a diagnosis from its recordings, if files, versions and machine have not changed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.commands.output import prepare_directory, save_recordings
from layoutdoctor.errors import RecordError, UsageError
from layoutdoctor.files.writing import RECORDING_SUFFIX, opened, write_file
from layoutdoctor.recording.saved import load_recording

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.workers.messages import Request

_KEY, _SEEN = "request.sha256", "surroundings.json"
_SEEN_VARIABLES = re.compile(
    r"(?:TORCH|PYTORCH|TRITON|OMP|GOMP|KMP|MKL|ONEDNN|DNNL|MALLOC|CUDA|HIP|ROCR|NVIDIA)_?.*|CXX|LD_PRELOAD"
)
"""Environment variables that may change the generated code or its time."""


class Folder:
    """
    A folder of recordings that one run writes and the next run continues from.

    Configurations that failed, hung or crashed are not tried again. All others are compiled and timed again, with warm
    compiler caches. If the run was finished, its recordings are examined again, and nothing is timed. If an imported
    file of the user, one of ``_SEEN_VARIABLES``, a version or the machine has changed, all configurations run again.

    Attributes:
        locked: Context that keeps other runs out of the folder until the context or the process ends.
        changes: Names of the things that have changed since the folder was written.
        recordings: The recordings in the folder that are still valid.
        is_done: Whether the recordings come from a finished run.
    """

    def __init__(self, path: Path, request: Request) -> None:
        """
        Opens the folder.

        Raises:
            UsageError: The folder cannot be used, is used by another run, or belongs to another target or options.
        """
        self._path = prepare_directory(str(path), "recordings")
        key, file = _key_of(request), self._path / _KEY
        cannot = f"cannot resume from {str(path)!r}:"
        try:
            with opened(file) as stream:
                is_same = stream.read(2 * len(key)).strip() == key.encode()
        except FileNotFoundError:
            if any(self._path.iterdir()):
                raise UsageError(
                    f"{cannot} it holds other files; give a folder that --resume wrote, or an empty or new one"
                ) from None
            write_file(file, key + "\n")
        except OSError as error:
            raise UsageError(f"{cannot} {_KEY}: {error.strerror or error}; give another folder") from error
        else:
            if not is_same:
                raise UsageError(
                    f"{cannot} it has another target or other options; give the same command line, or another folder"
                )
        try:
            self.locked = _locked(self._path)
        except BlockingIOError:
            raise UsageError(
                f"{cannot} another run uses it now; wait until that run has ended, or give another folder"
            ) from None
        self._has_noted = False
        self.changes = tuple(_changes(self._path / _SEEN))
        files = [] if self.changes else sorted(self._path.glob(f"*{RECORDING_SUFFIX}"))
        found = []
        for one in files:
            with contextlib.suppress(RecordError):  # an incomplete file: the configuration is tried again
                found.append(load_recording(one))
        self.recordings = tuple(found)
        # Only the recordings of a finished run have the times of the stages.
        self.is_done = 0 < len(files) == len(found) and all(one.head.stage_seconds for one in found)

    def lost(self) -> tuple[Recording, ...]:
        """Returns the recordings of configurations that failed, crashed or timed out and are not tried again."""
        return tuple(one for one in self.recordings if one.trial.status in ("failed", "crashed", "timed_out"))

    def keep(self, recordings: Sequence[Recording], loaded_files: Sequence[str]) -> None:
        """Writes the recordings so far; the first call also writes hashes of files, versions and machine."""
        if not self._has_noted:  # only once, soon after the files were imported
            self._has_noted = True
            hashes = {os.path.relpath(file, self._path): _hash_of(Path(file)) for file in loaded_files}
            seen = _Seen(surroundings=_surroundings(), files=hashes)
            write_file(self._path / _SEEN, msgspec.json.encode(seen, order="sorted").decode())
        save_recordings(recordings, self._path)


def _locked(folder: Path) -> contextlib.ExitStack:
    """
    Locks a folder against other runs until the returned context ends.

    On Windows, and on file systems without locks, nothing is locked.

    Raises:
        BlockingIOError: Another run has locked the folder.
    """
    lock = contextlib.ExitStack()
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            descriptor = os.open(folder, os.O_RDONLY)
            lock.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                lock.close()
                raise
    return lock


class _Seen(msgspec.Struct):
    """Hashes of the things that a run depended on; files by their paths relative to the folder."""

    surroundings: dict[str, str]
    files: dict[str, str]


def _changes(path: Path) -> Iterator[str]:
    """Yields the names of the things that have changed since the folder was written."""
    try:
        seen = msgspec.json.decode(path.read_bytes(), type=_Seen)
    except FileNotFoundError:  # nothing was recorded yet
        return
    except (OSError, msgspec.MsgspecError):
        yield f"{path.name} cannot be read"
        return
    now = _surroundings()
    yield from (name for name in sorted({*seen.surroundings, *now}) if seen.surroundings.get(name) != now.get(name))
    for name, known in sorted(seen.files.items()):
        if _hash_of(path.parent / name) != known:
            yield Path(name).name


def _surroundings() -> dict[str, str]:
    """Returns hashes of the things that code and times depend on, besides the command line and the user's files."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {name: value for name, value in os.environ.items() if _SEEN_VARIABLES.fullmatch(name)}
    found |= {"number of processors": str(affinity), "machine": f"{platform.node()} {platform.machine()}"}
    found |= {"Python": platform.python_version(), "layoutdoctor": __version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")
    return {name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest() for name, value in found.items()}


def _hash_of(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "cannot be read"


def _key_of(request: Request) -> str:
    """Returns a hash of the request, without its time limits, its budget, its folders and the text of the command."""
    same = msgspec.structs.replace(
        request, subject_directory=None, command=None, trace_directory=None, timeout_seconds=None, budget_seconds=None
    )
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()
