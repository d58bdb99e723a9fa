"""How commands run a diagnosis: what is shown meanwhile, a folder to go on from, and the reproducer."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.commands.output import path_of_target, prepare_directory, save_recordings, save_reports
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import OutputError, logger, say, showing_progress
from layoutdoctor.diagnosis import Diagnosis, Reproduction
from layoutdoctor.errors import NO_TORCH, RecordError, UnsupportedTorchError, UsageError
from layoutdoctor.examination.examine import concluded, diagnosis_of
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.files.writing import RECORDING_SUFFIX, opened, write_file
from layoutdoctor.recording.saved import load_recording
from layoutdoctor.reports.reproducer import build_reproducer
from layoutdoctor.reports.sections.rows import trial_in_short
from layoutdoctor.run.diagnose import diagnose_request
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.watching import Watch
from layoutdoctor.units import format_seconds
from layoutdoctor.words import listing
from layoutdoctor.workers.launcher import kept_launcher
from layoutdoctor.workers.messages import Progress
from layoutdoctor.workers.processes import BUSY_CORES, OtherPrograms, kill_with_all_it_started

if TYPE_CHECKING:
    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.workers.messages import Request

_KEY, _SEEN = "request.sha256", "surroundings.json"
_SEEN_VARIABLES = re.compile(
    r"(?:TORCH|PYTORCH|TRITON|OMP|GOMP|KMP|MKL|ONEDNN|DNNL|MALLOC|CUDA|HIP|ROCR|NVIDIA)_?.*|CXX|LD_PRELOAD"
)
"""Variables of the environment that may change the code that runs, or how long it takes."""
_REPRODUCER_SECONDS = 600.0
_LOOK_SECONDS = 1.0
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
    configurations are compiled and timed again, with the compiler's caches warm. So are all if a file of the user's
    that was loaded has changed since, or the environment, the processors or the machine.
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
                    f"{cannot} it is of another target, or of other options; give the same command line, "
                    "or another folder"
                )
        self._has_noted = False
        self.changes = tuple(_changes(self._path / _SEEN))
        files = [] if self.changes else sorted(self._path.glob(f"*{RECORDING_SUFFIX}"))
        found = []
        for one in files:
            with contextlib.suppress(RecordError):  # half a file: it is recorded again
                found.append(load_recording(one))
        self.recordings = tuple(found)
        # Only the recordings of a run that came to its end say how long its stages took.
        self.is_done = 0 < len(files) == len(found) and all(one.head.stage_seconds for one in found)

    def lost(self) -> tuple[Recording, ...]:
        """Configurations that need not be tried again."""
        return tuple(one for one in self.recordings if one.trial.status in ("failed", "crashed", "timed_out"))

    def keep(self, recordings: Sequence[Recording], loaded_files: Sequence[str]) -> None:
        """Writes the recordings so far, and what a run depends on that its command line does not say."""
        if not self._has_noted:  # once, soon after they were loaded
            self._has_noted = True
            hashes = {os.path.relpath(file, self._path): _hash_of(Path(file)) for file in loaded_files}
            seen = _Seen(surroundings=_surroundings(), files=hashes)
            write_file(self._path / _SEEN, msgspec.json.encode(seen, order="sorted").decode())
        save_recordings(recordings, self._path)


class _Seen(msgspec.Struct):
    """The things that a run depended on, each by a hash; files by their paths from the folder."""

    surroundings: dict[str, str]
    files: dict[str, str]


def _changes(path: Path) -> Iterator[str]:
    """The things that are no more as the run that wrote the folder found them."""
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
    """A hash of each thing that code and times depend on, beside the command line."""
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
    """A hash of all that the command line asks for, but for how long."""
    same = msgspec.structs.replace(
        request, subject_directory=None, command=None, trace_directory=None, timeout_seconds=None, budget_seconds=None
    )
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()


class Running:
    """
    A diagnosis of a command, under way; all diagnoses of a process share a launcher.

    Raises:
        UsageError: The folder to resume from cannot be used, or a word of the request is no text.
    """

    def __init__(self, request: Request, conclusion: Conclusion, resume: str | None) -> None:
        check_request(request)
        self._folder = None if resume is None else Folder(Path(resume), request)
        self._request, self._conclusion = request, conclusion
        self._named: set[str] = set()
        self._watch: Watch | None = None

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """Recordings of what was seen until now."""
        return () if self._watch is None else self._watch.latest

    def diagnose(self, *, quiet: bool) -> Diagnosis:
        """The diagnosis, findings included; each configuration is named as soon as it is ready."""
        request, folder = self._request, self._folder
        lost = () if folder is None else folder.lost()
        if folder is not None and folder.changes:
            say(f"measuring all again: changed since the run that is resumed: {listing(folder.changes, 5)}")
        names = {one.name for one in lost}
        left = tuple(one for one in request.configurations if one.name not in names)
        if folder is not None and (folder.is_done or not left):
            return diagnose_recordings(folder.recordings)
        watched: list[OtherPrograms] = [OtherPrograms()]
        with showing_progress(quiet=quiet) as display:

            def show(progress: Progress) -> None:
                if watched and watched[0].elapsed > _LOOK_SECONDS:
                    _say_if_busy(watched.pop())
                display(progress)

            self._watch = Watch(show, self._show, self._show_table, lost)
            request = msgspec.structs.replace(request, configurations=left)
            diagnosis = diagnose_request(kept_launcher(), request, self._watch)
        if folder is not None:
            folder.keep(self.recordings, self._watch.loaded_files)
        return diagnosis

    def stopped(self, how: str, directory: Path | None) -> Diagnosis | None:
        """
        The results of a diagnosis that was stopped, as they may be shown, and saved; None if nothing was ready.

        Args:
            directory: For the recordings, if they are to be kept.
        """
        seen = [
            msgspec.structs.replace(one, head=msgspec.structs.replace(one.head, interrupted=how))
            for one in self.recordings
        ]
        if not seen:
            return None
        if directory is not None:
            save_recordings(seen, directory)
        partial = self._conclusion.for_others(diagnosis_of(seen))
        try:
            save_reports(partial, self._conclusion.outputs)
        except OutputError as error:
            say(f"warning: {error}")
        return partial

    def _show(self) -> None:
        if self._folder is not None and self._watch is not None:
            self._folder.keep(self.recordings, self._watch.loaded_files)
        for one in self.recordings:
            if one.name not in self._named:
                self._named.add(one.name)
                # One that is the same as another may be known before that has compiled.
                trial = diagnosis_of([one]).trials[0] if one.trial.status == "ok" else concluded(one.trial)
                failure = trial.failure and self._conclusion.for_others(trial.failure)  # its text may hold a path
                logger.info("%s", trial_in_short(msgspec.structs.replace(trial, failure=failure)))

    def _show_table(self, recordings: Sequence[Recording]) -> None:
        """Prints the first table, whose times are provisional."""
        from layoutdoctor.reports.sections.view import build_view  # late, as the reports take their time
        from layoutdoctor.reports.text import table_lines

        logger.info("first times, provisional (others are still compiling):")
        for table in build_view(self._conclusion.for_others(diagnosis_of(recordings))).tables[:1]:
            for _, line in table_lines(table.narrow, 100):
                logger.info("%s", line)


def _say_if_busy(others: OtherPrograms) -> None:
    """Says so before minutes are spent, if other programs use much of the machine."""
    cores = others.cores
    if cores is not None and cores > BUSY_CORES:
        logger.info("other programs use %.1f cores: times will vary; end them, or diagnose later", cores)


def say_stages(diagnosis: Diagnosis) -> None:
    """How long each stage took, the longest first, for ``-v``."""
    longest = sorted(diagnosis.stage_seconds.items(), key=lambda stage: -stage[1])
    logger.debug("took %s", ", ".join(f"{format_seconds(seconds)} {stage}" for stage, seconds in longest))


def with_reproduction(
    diagnosis: Diagnosis, outputs: Sequence[OutputFile], target: str | None, *, quiet: bool
) -> Diagnosis:
    """
    The diagnosis with what its reproducer printed, if a report will hold one that can be run here.

    Args:
        target: As on the command line; the script is given its file if it takes the model from one.
    """
    if not any(output.report_format in ("markdown", "reproducer") for output in outputs):
        return diagnosis
    reproducer = build_reproducer(diagnosis)
    needs_file = reproducer.file is not None
    if not reproducer.is_runnable or (needs_file and target is None):
        return diagnosis
    file = path_of_target(target).absolute() if needs_file and target is not None else None
    begin = time.monotonic()
    try:
        with showing_progress(quiet=quiet) as display:
            display(Progress(stage="running the reproducer", done=99))
            done = run_reproducer(reproducer.script, file)
    except (Interrupted, OSError) as error:
        say(f"the reproducer was not run to its end: {error}")
        return diagnosis
    stages = diagnosis.stage_seconds | {"running the reproducer": time.monotonic() - begin}
    return msgspec.structs.replace(diagnosis, reproduction=done, stage_seconds=stages)


class _Verdict(msgspec.Struct, frozen=True):
    """The last line that a reproducer prints."""

    reproduced: bool


def run_reproducer(script: str, file: Path | None = None, limit_seconds: float = _REPRODUCER_SECONDS) -> Reproduction:
    """
    Runs a script in a folder of its own, and ends it and all that it started after so many seconds.

    Args:
        file: The model's file, if the script takes the model from one.
    """
    with private_directory() as folder:
        here = Path(folder, "reproducer.py")
        here.write_text(script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(here), *([] if file is None else [str(file)])],
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
    lines = [line for line in printed.splitlines() if line.strip()]
    verdict = None
    with contextlib.suppress(msgspec.DecodeError, IndexError):
        verdict = msgspec.json.decode(lines[-1], type=_Verdict).reproduced
        del lines[-1]
    if verdict is None and process.returncode != 0:
        lines += [line for line in problem.splitlines() if line.strip()]
    return Reproduction(printed="\n".join(lines[-_MOST_LINES:]), reproduced=verdict)
