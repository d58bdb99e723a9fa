"""How commands run a diagnosis: its launcher, a folder to go on from, and the reproducer."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.commands.output import path_of_target, prepare_directory, save_recordings
from layoutdoctor.commands.streams import say
from layoutdoctor.diagnosis.diagnosis import Reproduction
from layoutdoctor.diagnosis.writing import opened, private_directory, write_file
from layoutdoctor.errors import NO_TORCH, RecordError, UnsupportedTorchError, UsageError
from layoutdoctor.recording.saved import SUFFIX, load_recording
from layoutdoctor.reports.reproducer import NOT_REPRODUCED, REPRODUCED, build_reproducer
from layoutdoctor.run.diagnose import diagnose_request
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.watching import Watch
from layoutdoctor.workers.launcher import Launcher
from layoutdoctor.workers.processes import kill_with_all_it_started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.workers.messages import Progress, Request

_KEY, _DONE = "request.sha256", "done"
_REPRODUCER_SECONDS = 600.0
_MOST_LINES = 12


def check_request(request: Request) -> None:
    """Refuses a request that no worker could carry out."""
    require_torch()
    try:
        msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"cannot diagnose with {error.object!r}: it is no text in UTF-8; give a copy or a link under another name"
        ) from None


def require_torch() -> None:
    """Looks for torch without importing it."""
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedTorchError(NO_TORCH)


class Folder:
    """
    A folder of recordings that a run writes, and that the next one goes on from.

    Configurations that failed, hung or crashed are not tried again. A finished run is examined once more. All other
    configurations are compiled and timed again, with the compiler's caches warm.
    """

    def __init__(self, path: Path, request: Request) -> None:
        """
        Opens it.

        Raises:
            UsageError: It cannot be used, or is that of another run.
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
                    f"{cannot} it is of another target, or of other options or versions; give the same command line, "
                    "or another folder"
                )
        files = sorted(self._path.glob(f"*{SUFFIX}"))
        found = []
        for one in files:
            with contextlib.suppress(RecordError):  # half a file: it is recorded again
                found.append(load_recording(one))
        self.recordings = tuple(found)
        self.is_done = (self._path / _DONE).exists() and 0 < len(files) == len(found)

    def lost(self) -> tuple[Recording, ...]:
        """Configurations that need not be tried again."""
        return tuple(one for one in self.recordings if one.trial.status in ("failed", "crashed", "timed_out"))

    def keep(self, recordings: Sequence[Recording]) -> None:
        """Writes the recordings so far."""
        save_recordings(recordings, self._path)

    def finish(self) -> None:
        """Notes that the run came to its end."""
        with contextlib.suppress(OSError):
            (self._path / _DONE).touch()


def _key_of(request: Request) -> str:
    """A hash of all that has to be the same for a run to be continued."""
    source, content = path_of_target(str(request.target)), ""
    with contextlib.suppress(OSError):
        content = hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
    versions = [__version__]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions.append(importlib.metadata.version("torch"))
    same = msgspec.structs.replace(
        request, subject_directory=None, command=None, trace_directory=None, timeout_seconds=None, budget_seconds=None
    )
    return hashlib.sha256(repr((versions, content, msgspec.json.encode(same, order="sorted"))).encode()).hexdigest()


class Running:
    """
    One command's diagnoses, with a launcher that all of them share.

    Attributes:
        watch: That of the diagnosis under way.
    """

    def __init__(self) -> None:
        self.watch: Watch | None = None
        self._launcher: Launcher | None = None

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._launcher is not None:
            self._launcher.close()

    def diagnose(
        self,
        request: Request,
        progress: Callable[[Progress], None],
        on_trial: Callable[[Diagnosis], None],
        on_table: Callable[[Diagnosis], None],
        folder: Folder | None = None,
    ) -> Diagnosis:
        """
        The diagnosis, findings included.

        Args:
            on_trial: Called with the diagnosis so far whenever there is more of it.
            on_table: Called with the first, provisional table.
            folder: Keeps the recordings meanwhile.
        """
        check_request(request)
        if folder is not None and folder.is_done:
            return diagnose_recordings(folder.recordings)
        lost = () if folder is None else folder.lost()
        names = {one.name for one in lost}
        left = tuple(one for one in request.configurations if one.name not in names)
        if lost and not left:
            return diagnose_recordings(lost)

        def show(diagnosis: Diagnosis) -> None:
            if folder is not None and self.watch is not None:
                folder.keep(self.watch.latest)
            on_trial(diagnosis)

        self.watch = Watch(progress, show, on_table, lost=lost)
        if self._launcher is None or not self._launcher.is_alive:
            self._launcher = Launcher()
        request = msgspec.structs.replace(request, configurations=left)
        diagnosis = diagnose_request(self._launcher, request, self.watch)
        if folder is not None:
            folder.keep(self.watch.latest)
            folder.finish()
        return diagnosis


def say_how_to_continue(words: Sequence[str]) -> None:
    """One line on standard error: the command again, with its files of this run allowed to be replaced."""
    written = ("--output", "--save-recordings", "--save-traces")
    words = list(words)
    if any(word.startswith(written) for word in words) and "--force" not in words:
        words.append("--force")
    say(f"continue with: {shlex.join(['python', '-m', 'layoutdoctor', *words])}")


def is_reproducer_wanted(outputs: Sequence[OutputFile], diagnosis: Diagnosis) -> bool:
    """Whether a report will hold a reproducer to be pasted that can be run here."""
    is_shown = any(output.report_format in ("markdown", "reproducer") for output in outputs)
    return is_shown and build_reproducer(diagnosis).is_runnable


def with_reproduction(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis, as it was measured on this machine, with what its reproducer printed."""
    begin = time.monotonic()
    done = run_reproducer(build_reproducer(diagnosis).script)
    stages = diagnosis.stage_seconds | {"running the reproducer": time.monotonic() - begin}
    return msgspec.structs.replace(diagnosis, reproduction=done, stage_seconds=stages)


def run_reproducer(script: str, limit_seconds: float = _REPRODUCER_SECONDS) -> Reproduction:
    """Runs a script in a folder of its own, and ends it and all that it started after so many seconds."""
    with private_directory() as folder:
        here = Path(folder, "reproducer.py")
        here.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(here)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            printed, problem = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return Reproduction(printed=f"ended after {limit_seconds:.0f} s", reproduced=None)
        finally:
            if process.returncode is None:
                kill_with_all_it_started(process.pid)
                process.communicate()
    verdict = {REPRODUCED: True, NOT_REPRODUCED: False}.get(printed.rstrip().rpartition("\n")[2])
    shown = printed if verdict is not None or process.returncode == 0 else f"{printed}{problem}"
    lines = [line for line in shown.splitlines() if line.strip()]
    return Reproduction(printed="\n".join(lines[-_MOST_LINES:]), reproduced=verdict)
