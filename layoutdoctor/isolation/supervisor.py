"""
Runs a diagnosis in a child process and survives the child's death: what was done is kept, the rest is done by another.

A crash, a hang or a broken device costs the configuration under way. This process holds no model and never imports
torch; it examines what the child recorded, so that a fault there costs nothing that was measured.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor import errors
from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import LayoutDoctorError, SubjectError, TransportError
from layoutdoctor.examination.choice import has_open_questions
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.isolation.fresh import timed, verified, wants_timing, with_head
from layoutdoctor.isolation.messages import (
    SHORTEST_START_SECONDS,
    TURNS,
    Began,
    Broken,
    Derived,
    Finished,
    Kept,
    KeptMore,
    Lost,
    MessageReader,
    Progress,
    Refused,
    Request,
    StageClock,
    TurnBoard,
    encode,
)
from layoutdoctor.isolation.processes import (
    adopt_orphans,
    has_ended,
    how_it_ended,
    kill_all,
    kill_with_all_it_started,
    last_seen,
    peak_resident_bytes,
    remove_scratch,
    start_child,
    started_by,
)
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.examination.examine import Examined
    from layoutdoctor.isolation.journal import Journal
    from layoutdoctor.isolation.messages import AnyMessage, LostStatus

_LOOK_SECONDS = 0.5
_STACK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 2.0
_READ_BYTES = 2**16
_LOG_BYTES = 2**15
_LOG_LINES = 200  # a stack begins with the last call, so that its beginning has to be there
_LONGEST_LOG_LINE = 400
_STAGE_WORDS = {
    "start": "while torch was imported",
    "load": "while the model was loaded",
    "prepare": "while the model was copied and converted",
    "compile": "while it was compiled",
    "run": "while it ran",
    "profile": "while it was profiled",
    "measure": "while it was timed",
    "target": "while it was lowered",
}


@dataclass
class Watch:
    """
    Who is told what.

    Attributes:
        on_trial: Called with the diagnosis so far after each trial.
        warn: Called with a sentence when something was lost that does not end the diagnosis.
        owns_process: Whether this process is there for the diagnosis only, as the command's is: whatever it has for
            descendants when a child ends was started by the model, and ends too.
    """

    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    on_trial: Callable[[Diagnosis], None] = field(default=lambda diagnosis: None)
    on_output: Callable[[bytes], None] = field(default=lambda data: None)
    warn: Callable[[str], None] = field(default=lambda sentence: None)
    owns_process: bool = False


def supervise(request: Request, journal: Journal, watch: Watch, timeout_seconds: float | None) -> Diagnosis:
    """
    Runs a diagnosis to its end, in as many processes as it takes.

    Args:
        journal: What earlier runs did, and where to keep what this one does. A finished diagnosis is given back, unless
            rounds left something undecided: then this run adds to them.
        timeout_seconds: For one configuration; None for no limit.

    Returns:
        The record, without findings.

    Raises:
        LayoutDoctorError: The child refused, or died before any configuration began.
    """
    if journal.finished is not None:
        diagnosis = diagnosis_of(journal.finished.recordings)
        if not has_open_questions(diagnosis):
            return diagnosis
    if watch.owns_process:
        adopt_orphans()
    known: dict[str, Examined] = {}
    times_here = False
    clock = StageClock(watch.progress)
    watch = replace(watch, progress=clock)
    while True:
        kept = journal.kept.without_profiles()
        attempt = msgspec.structs.replace(
            request,
            configurations=(*request.configurations, *kept.derived),
            kept=kept,
            lost=journal.lost,
            times_here=times_here,
        )
        child = _Child(attempt, journal, watch, known, timeout_seconds)
        try:
            child.run()
        finally:
            child.end()
        if child.finished is not None:
            earlier = None if journal.kept.head is None else journal.kept.head.comparison
            kept = reduce(Kept.with_trial, child.finished.recordings, journal.kept)
            if not times_here and wants_timing(kept):
                try:
                    recordings = timed(kept, request, watch.progress, earlier, timeout_seconds)
                    kept = msgspec.structs.replace(kept, recordings=recordings)
                except (SubjectError, TransportError) as error:
                    watch.warn(f"all configurations are timed in one process: {error}")
                    times_here = True
                    continue
            profiled_before = {recording.name: recording.iterations for recording in child.finished.recordings}
            how = {name: memo.how for name, memo in kept.memos.items() if memo.how is not None}
            recordings = verified(kept.recordings, request, watch.progress, how)
            for recording in recordings:
                if recording.iterations is not profiled_before.get(recording.name):
                    known.pop(recording.name, None)
            kept = msgspec.structs.replace(kept, recordings=with_head(recordings, stage_seconds=clock.end()))
            journal.finish(kept)
            return diagnosis_of(kept.recordings, known)
        if child.refused is not None:
            raise _as_raised(child.refused)
        name, lost = child.what_was_lost()
        if name is None or name in journal.lost:
            raise SubjectError(_before_any(request, lost.failure))
        journal.lose(name, lost)
        watch.warn(f"{name}: {lost.failure.message}; going on without it")


def _as_raised(refused: Refused) -> LayoutDoctorError:
    """The child's error, as if it had been raised here."""
    kind = getattr(errors, refused.kind, LayoutDoctorError)
    error = LayoutDoctorError(refused.message)
    if isinstance(kind, type) and issubclass(kind, LayoutDoctorError):
        error = kind.__new__(kind)
        Exception.__init__(error, refused.message)
    return error


def _before_any(request: Request, failure: Failure) -> str:
    name = (request.target or "the model").rpartition("/")[2]
    return (
        f"cannot diagnose {name}: {failure.message}, before any configuration was tried"
        f"{last_seen(failure.log or '', name.partition('.py:')[0].removesuffix('.py') + '.py')}; "
        "see whether the model runs on this input by itself, or use --no-isolation under a debugger"
    )


class _Child:
    """One process and what it said: ``finished`` or ``refused`` at its end, neither where it did not come to that."""

    def __init__(
        self,
        request: Request,
        journal: Journal,
        watch: Watch,
        known: dict[str, Examined],
        timeout_seconds: float | None,
    ) -> None:
        self.request, self.journal, self.watch, self.timeout_seconds = request, journal, watch, timeout_seconds
        self._known = known
        self.finished: Finished | None = None
        self.refused: Refused | None = None
        self._began = Began(configuration=None, stage="start")
        self._broken: Broken | None = None
        self._garbled: str | None = None
        self._is_late = False
        self._deadline = self._deadline_of(self._began)
        self.peak_bytes: int | None = None
        self._looked = 0.0
        self._log: deque[bytes] = deque()
        self._reader = MessageReader()
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._board: TurnBoard | None = None

    def run(self) -> None:
        """Starts the process and listens until it has ended, or has to be ended."""
        board = TurnBoard.make()
        self._board = TurnBoard(board)
        self._process, request_end, messages = start_child(board, subprocess.PIPE)
        output = self._process.stdout
        assert output is not None  # it is a pipe
        try:
            self._send_request(request_end)
            self._listen(messages, output.fileno())
        finally:
            os.close(messages)
            output.close()

    def _send_request(self, descriptor: int) -> None:
        # A child that died while it started reads nothing, and what it printed says why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError), os.fdopen(descriptor, "wb") as stream:
            stream.write(encode(self.request))

    def _listen(self, messages: int, output: int) -> None:
        for descriptor in (messages, output):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        assert self._process is not None
        while not has_ended(self._process.pid) and self._garbled is None and not self._is_over():
            for key, _ in self._selector.select(_LOOK_SECONDS):
                if not self._take(key.fd, is_message=key.fd == messages):
                    self._selector.unregister(key.fd)
            if self._began.stage != TURNS:  # whatever runs here runs on a core that is being timed
                self._look_at_memory()
            if time.monotonic() > self._time_limit():
                self._is_late = True
                self._ask_for_stack(output)
                return
        # What it said before it ended; what it started may go on talking.
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while self._is_over() and not has_ended(self._process.pid) and time.monotonic() < end:
            if not self._take(output, is_message=False):  # it removes temporary files of the model now
                time.sleep(_LOOK_SECONDS / 20)
        for descriptor in (messages, output):
            while self._take(descriptor, is_message=descriptor == messages) and time.monotonic() < end:
                pass

    def _look_at_memory(self) -> None:
        assert self._process is not None
        if time.monotonic() > self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            self.peak_bytes = peak_resident_bytes(self._process.pid) or self.peak_bytes

    def _turn(self) -> tuple[str, float] | None:
        """Whose turn it is, and since when; None where nobody is being timed."""
        turn = self._board.read() if self._board is not None and self._began.stage == TURNS else None
        if turn is None or not 0 <= turn[0] < len(self.request.configurations):
            return None
        return self.request.configurations[turn[0]].name, turn[1]

    def _time_limit(self) -> float:
        turn = self._turn()
        if turn is None or self.timeout_seconds is None:
            return self._deadline
        return turn[1] + self.timeout_seconds

    def _is_over(self) -> bool:
        return self.finished is not None or self.refused is not None or self._broken is not None

    def _ask_for_stack(self, output: int) -> None:
        """Where it hangs: faulthandler writes it without the interpreter's help."""
        assert self._process is not None
        with contextlib.suppress(OSError, AttributeError):
            self._process.send_signal(signal.SIGUSR2)
        end = time.monotonic() + _STACK_SECONDS
        while time.monotonic() < end and not has_ended(self._process.pid):
            if not self._take(output, is_message=False):
                time.sleep(_LOOK_SECONDS / 10)

    def _take(self, descriptor: int, *, is_message: bool) -> bool:
        """Reads what is there; False where nothing is, now or for ever."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            return False
        if not is_message:
            self._keep_output(data)
            return True
        try:
            for message in self._reader.feed(data):
                self._hear(message)
        except (ValueError, RecursionError) as error:  # msgspec's errors are values' errors
            self._garbled = str(error).splitlines()[0]
            return False
        return True

    def _keep_output(self, data: bytes) -> None:
        self.watch.on_output(data)
        self._log.append(data)
        while sum(map(len, self._log)) - len(self._log[0]) > _LOG_BYTES:
            self._log.popleft()

    def _hear(self, message: AnyMessage) -> None:
        match message:
            case Began():
                if message.is_new:
                    self._deadline = self._deadline_of(message)
                self._began = message
            case Progress():
                self.watch.progress(message)
            case KeptMore():
                self._keep(message)
            case Derived():
                configurations = (*self.request.configurations, *message.configurations)
                self.request = msgspec.structs.replace(self.request, configurations=configurations)
                self.journal.keep(self.journal.kept.with_derived(message.configurations))
            case Finished():
                self.finished = message
            case Refused():
                self.refused = message
            case Broken():
                self._broken = message
            case _:
                self._garbled = f"{type(message).__name__} was not asked for"

    def _keep(self, message: KeptMore) -> None:
        """Keeps a trial and tells of it, while the child waits: what is examined here runs on a core that it needs."""
        kept = self.journal.kept.with_trial(message.recording, message.memo)
        self.journal.keep(kept)
        start = time.monotonic()
        self.watch.on_trial(diagnosis_of(kept.recordings, self._known))
        self._deadline += time.monotonic() - start
        if self._board is not None:
            self._board.let_go_on()

    def _deadline_of(self, began: Began) -> float:
        if self.timeout_seconds is None:
            return float("inf")
        seconds = self.timeout_seconds
        return time.monotonic() + (max(seconds, SHORTEST_START_SECONDS) if began.stage == "start" else seconds)

    def what_was_lost(self) -> tuple[str | None, Lost]:
        """The configuration that was under way, and what happened to it."""
        if self._broken is not None:
            return self._broken.configuration, Lost(status="crashed", failure=self._broken.failure)
        assert self._process is not None
        status: LostStatus = "timed_out" if self._is_late else "crashed"
        stage = self._began.stage
        if self._is_late:
            what = f"it took longer than {self.timeout_seconds:g} s, the limit for one configuration,"
        elif self._garbled is not None:
            what = f"the process sent what is no message ({self._garbled})"
        else:
            what = how_it_ended(self._process.returncode)
        was_killed = self._process.returncode == -signal.SIGKILL and not self._is_late
        memory = f"; it held up to {format_bytes(self.peak_bytes)}" if self.peak_bytes and was_killed else ""
        message = f"{what} {_STAGE_WORDS.get(stage, f'while {stage}')}{memory}"
        failure = Failure(kind=stage, message=message, log=self._last_lines() or None)
        turn = self._turn()
        return turn[0] if turn is not None else self._began.configuration, Lost(status=status, failure=failure)

    def _last_lines(self) -> str:
        lines = b"".join(self._log).decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        return "\n".join(line[:_LONGEST_LOG_LINE] for line in lines).strip()

    def end(self) -> None:
        """Ends the process with all it started, and removes its temporary files."""
        self._selector.close()
        if self._process is None:
            return
        kill_with_all_it_started(self._process.pid)
        if self.watch.owns_process:
            kill_all(started_by(os.getpid()))
        self._process.wait()
        remove_scratch(self._process.pid)
