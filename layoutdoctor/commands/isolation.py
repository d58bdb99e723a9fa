"""How the diagnose command keeps what a model does away from itself: the signals, the journal, and how to continue."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import platform
import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.commands.output import path_of_target, save_recordings
from layoutdoctor.commands.streams import say, stdout_to_stderr
from layoutdoctor.errors import NO_TORCH, UnsupportedTorchError, UsageError, needs_torch
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.isolation.fresh import with_head
from layoutdoctor.isolation.journal import Journal, RunKey, open_journal
from layoutdoctor.isolation.messages import DEFAULT_TIMEOUT_SECONDS, Kept, Listener, StageClock
from layoutdoctor.isolation.supervisor import Watch, supervise
from layoutdoctor.reports.sections.wording import clean
from layoutdoctor.rules import run_rules
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.examination.examine import Examined
    from layoutdoctor.isolation.messages import Progress, Request, TrialMemo
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.subject import LoadedSubject

_ENDING = {"SIGTERM": "ended from outside (SIGTERM)", "SIGHUP": "its terminal was closed (SIGHUP)"}


class Terminated(BaseException):
    """
    The command was told to end by a signal.

    Attributes:
        how: In words, for the record.
        exit_status: 128 and the signal's number, as shells have it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        name = signal.Signals(number).name
        self.how = _ENDING.get(name, name)
        self.exit_status = 128 + number


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """Meanwhile the signals that end a process become an exception, so that what was done is written first."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in _ENDING:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # under nohup it is ignored
                before[number] = signal.signal(number, _raise_terminated)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Terminated(number)


def prepare_isolation(arguments: argparse.Namespace, request: Request) -> Isolation:
    """
    Checks the options and opens the journal.

    Args:
        arguments: The parsed command line.
        request: What to diagnose, and how.

    Raises:
        UsageError: The options contradict each other, or the journal cannot be used.
        UnsupportedTorchError: torch is not installed.
    """
    if arguments.no_isolation:
        given = [name for name in ("timeout", "resume") if getattr(arguments, name) is not None]
        if given:
            raise UsageError(
                f"cannot use --{given[0]} with --no-isolation: nothing watches over the model then; leave out one"
            )
        return Isolation(request, None, None, arguments.words)
    if not can_import_torch():
        raise UnsupportedTorchError(NO_TORCH)
    said = (request.target, request.module, request.device, request.dtype, request.trace_directory)
    _check_text((*said, *request.inputs, *request.config))
    seconds = DEFAULT_TIMEOUT_SECONDS if arguments.timeout is None else arguments.timeout
    journal = open_journal(arguments.resume, _key(request))
    return Isolation(request, journal, None if seconds == math.inf else seconds, arguments.words)


def _check_text(words: Sequence[str | None]) -> None:
    """The names of files may be no text at all; what goes to the other process is."""
    for word in words:
        try:
            (word or "").encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"cannot diagnose with {word!r}: it is no text in UTF-8; give a copy or a link under another name, or "
                "pass --no-isolation"
            ) from None


def can_import_torch() -> bool:
    """Whether there is a torch, which is not imported."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec("torch") is not None
    return False


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _key(request: Request) -> RunKey:
    return RunKey(
        layoutdoctor=__version__,
        torch=_version_of("torch"),
        python=platform.python_version(),
        processor=f"{platform.machine()}, {os.cpu_count()} processors",
        target=str(request.target),
        source=_fingerprint(str(request.target)),
        inputs=request.inputs,
        device=request.device,
        dtype=request.dtype,
        mode=request.mode,
        configurations=tuple(
            msgspec.json.encode(configuration, order="sorted").decode() for configuration in request.configurations
        ),
        lower_for=request.lower_for,
        module=request.module,
        config=request.config,
    )


def _fingerprint(target: str) -> str | None:
    """Of the file that a target names; None where it names none, or none that can be read."""
    path = path_of_target(target)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError:
        return None


class Isolation:
    """
    One command's run, in processes of its own or, without a journal, in this one.

    Attributes:
        is_done: Whether the diagnosis came to its end.
    """

    def __init__(
        self, request: Request, journal: Journal | None, timeout_seconds: float | None, words: Sequence[str]
    ) -> None:
        self.is_done = False
        self._request, self._journal, self._timeout_seconds, self._words = request, journal, timeout_seconds, words
        self._kept = Kept()

    def __enter__(self) -> Isolation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._journal is not None:
            self._journal.close(is_needed=not self.is_done and self._journal.can_continue)

    def diagnose(self, progress: Callable[[Progress], None], on_trial: Callable[[Diagnosis], None]) -> Diagnosis:
        """
        The diagnosis, findings included.

        Args:
            progress: Called at every step.
            on_trial: Called with the diagnosis so far after each trial.

        Raises:
            LayoutDoctorError: The target could not be examined.
        """
        if self._journal is None:
            return self._diagnose_here(progress, on_trial)
        if self._journal.kept.recordings:
            on_trial(diagnosis_of(self._journal.kept.recordings))
        if self._journal.failure is not None:
            _warn(self._journal.failure)
        watch = Watch(progress, on_trial, _Echo(), _warn, owns_process=True)
        diagnosis = supervise(self._request, self._journal, watch, self._timeout_seconds)
        return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, None))

    def _diagnose_here(self, progress: Callable[[Progress], None], on_trial: Callable[[Diagnosis], None]) -> Diagnosis:
        clock = StageClock(progress)
        here = _Here(clock, on_trial)
        request = self._request
        with stdout_to_stderr():  # the model may print what it likes: standard output is the report's
            load_requested, record_subject = _import_engine()
            subject = load_requested(request)
            try:
                recordings = record_subject(subject, request, here)
            finally:
                self._kept = here.kept
        recordings = with_head(recordings, stage_seconds=clock.end())
        self._kept = Kept(recordings=recordings)
        return diagnose_recordings(recordings, known=here.known)

    def save_recordings(self, directory: Path | None, interrupted: str | None = None) -> None:
        """
        Writes what was seen of each configuration, where that was asked for.

        Args:
            directory: Where to; None where it was not.
            interrupted: What stopped the diagnosis; None where it came to its end.
        """
        kept = self._kept if self._journal is None else self._journal.kept
        if directory is not None:
            save_recordings(kept.recordings, directory, interrupted)

    def say_how_to_continue(self) -> None:
        """One line on standard error, where there is something to continue from."""
        if self._journal is None or not self._journal.can_continue:
            return
        words = list(self._words)
        if "--resume" not in words and not any(word.startswith("--resume=") for word in words):
            words += ["--resume", str(self._journal.directory)]
        written = ("--output", "--save-recordings", "--save-traces")  # what this run wrote is there by then
        if any(word.startswith(written) for word in words) and "--force" not in words:
            words.append("--force")
        line = shlex.join(["python", "-m", "layoutdoctor", *words])
        say(f"continue with: {clean(line)}")


class _Here(Listener):
    """Keeps what is done in this process, and tells of it."""

    def __init__(self, progress: Callable[[Progress], None], on_trial: Callable[[Diagnosis], None]) -> None:
        super().__init__(progress)
        self.kept = Kept()
        self.known: dict[str, Examined] = {}
        self._on_trial = on_trial

    def keep(self, recording: Recording, memo: TrialMemo) -> None:
        """Keeps a trial, and tells of all there are."""
        self.kept = self.kept.with_trial(recording, memo)
        self._on_trial(diagnosis_of(self.kept.recordings, self.known))


def _import_engine() -> tuple[Callable[..., LoadedSubject], Callable[..., tuple[Recording, ...]]]:
    """Late, as both import torch."""
    with needs_torch():
        from layoutdoctor.run.diagnose import record_subject
        from layoutdoctor.subjects.load import load_requested
    return load_requested, record_subject


def _warn(sentence: str) -> None:
    say(f"warning: {clean(sentence)}")


class _Echo:
    """What the child prints goes to standard error, also where a character is cut in two."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(self._decoder.decode(data))
            sys.stderr.flush()
