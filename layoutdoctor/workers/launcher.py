"""
The launcher and the processes that come of it, seen from the process that asked for a diagnosis.

Nothing here imports torch: a launcher imports it once, a host loads a subject, and workers and starts are forked from
there. If forking the host is not safe, as on a GPU, each worker is forked from the launcher, loads the subject for
itself and answers the same orders.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from layoutdoctor import errors
from layoutdoctor.diagnosis import Configuration, Failure, TrialStatus
from layoutdoctor.errors import LayoutDoctorError, SubjectError, TransportError
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.workers.endings import how_it_ended, last_seen, what_matters
from layoutdoctor.workers.messages import (
    Begin,
    Channel,
    ClosedError,
    Ended,
    Failed,
    Fork,
    Load,
    Loaded,
    NoMessageError,
    Opened,
    Refused,
    channel_pair,
)
from layoutdoctor.workers.processes import kill_all, kill_with_all_it_started, of_session, working_folder
from layoutdoctor.workers.settling import short_waits

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.messages import Answer, Order, Proposal, Request

A = TypeVar("A")

_CODE = "import sys; sys.path[:] = sys.argv[3:]; from layoutdoctor.run.launcher import main; main(sys.argv[1:3])"
_LONGEST_START_SECONDS = 600.0
_SHOWN_LINES, _READ_LINES = 12, 500
_WAIT_FOR_END_SECONDS = 5.0
_WAIT_FOR_CODE_SECONDS = 60.0  # a launcher that prepares the compiler looks at nothing else
_STACKS_SECONDS = 0.5


class LostError(Exception):
    """
    A process is of no use any more.

    Attributes:
        status: The status of a trial whose process this was: ``failed`` if the model raised, and the process said so.
        proposals: The cures that may help against that.
    """

    def __init__(self, failure: Failure, status: TrialStatus, proposals: tuple[Proposal, ...] = ()) -> None:
        super().__init__(failure.message)
        self.failure, self.status, self.proposals = failure, status, proposals


class Process:
    """
    A process that answers orders.

    Attributes:
        log: File that it prints into, or only its stacks; None if all goes to our standard error.
        source: The user's file, without its folder, whose lines are named if the process is lost.
        limit_seconds: For each answer; None for no limit. What it forks has the same file and limit.

    Args:
        returncode: Waits until it has ended, and says how; None if nobody knows.
    """

    def __init__(
        self,
        channel: Channel,
        pid: int,
        returncode: Callable[[], int | None] = lambda: None,
        log: Path | None = None,
        source: str = "",
        limit_seconds: Seconds | None = None,
    ) -> None:
        self.channel, self.pid, self.log, self.source, self.limit_seconds = channel, pid, log, source, limit_seconds
        self._returncode = returncode
        self._children: dict[int, int] = {}  # exit codes of what it forked
        self._is_ended = False

    def ask(self, order: Order, kind: type[A]) -> A:
        """
        Sends an order and waits for the answer.

        Raises:
            LostError: The process failed, ended, or did not answer in time.
            LayoutDoctorError: It refuses, for a reason that the user can mend.
        """
        self.tell(order)
        return self.answer(kind)

    def tell(self, order: Order) -> None:
        """Sends an order; if the process is gone, the wait for the answer says so."""
        with contextlib.suppress(ClosedError):
            self.channel.send(order)

    def answer(self, kind: type[A], left_seconds: Seconds | None = None) -> A:
        """The answer to an order, within the limit, or what is left of it; raises as ``ask`` does."""
        return self._received(kind, self.limit_seconds if left_seconds is None else left_seconds)[0]

    def fork(self, order: Load | Begin | Fork) -> Process:
        """The process that this one forks for an order, which prints into the order's log; raises as ``ask`` does."""
        self.tell(order)
        opened, descriptor = self._received(Opened, self.limit_seconds or _LONGEST_START_SECONDS)
        assert descriptor is not None
        returncode = lambda: self._returncode_of(opened.pid)  # noqa: E731
        return Process(Channel(descriptor), opened.pid, returncode, Path(order.log), self.source, self.limit_seconds)

    def _received(self, kind: type[A], timeout_seconds: Seconds | None) -> tuple[A, int | None]:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            message, descriptor = self._next(deadline)
        except TimeoutError:
            raise self._overdue(timeout_seconds or 0.0) from None
        except NoMessageError as error:
            raise self._failed(str(error), "crashed") from None
        except ClosedError:
            raise self._lost() from None
        if isinstance(message, kind):
            return message, descriptor
        if isinstance(message, Failed):
            raise LostError(message.failure, "failed", message.proposals)
        if isinstance(message, Refused):
            raise getattr(errors, message.kind)(message.message)
        raise LostError(Failure(kind="measure", message=f"it answered with {type(message).__name__}"), "crashed")

    def _next(self, deadline: float | None) -> tuple[Answer, int | None]:
        """The next message but those about processes that have ended."""
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            message, descriptor = self.channel.receive(left)
            if not isinstance(message, Ended):
                return cast("Answer", message), descriptor
            self._children[message.pid] = message.returncode

    def _returncode_of(self, pid: int) -> int | None:
        """How a process that this one forked has ended; None if nobody knows."""
        deadline = time.monotonic() + _WAIT_FOR_CODE_SECONDS
        with contextlib.suppress(ClosedError, TimeoutError):
            while pid not in self._children and isinstance(
                ended := self.channel.receive(max(deadline - time.monotonic(), 1e-3))[0], Ended
            ):
                self._children[ended.pid] = ended.returncode
        return self._children.get(pid)

    def _overdue(self, seconds: Seconds) -> LostError:
        """Says what a process that does not answer was doing: faulthandler writes its stacks into the log."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(_STACKS_SECONDS)
        return self._failed(f"it took more than {self.limit_seconds or seconds:g} s", "timed_out")

    def _lost(self) -> LostError:
        code = self._returncode()
        return self._failed("the process ended" if code is None else how_it_ended(code), "crashed")

    def _failed(self, how: str, status: TrialStatus) -> LostError:
        text = ""
        if self.log is not None:
            with contextlib.suppress(OSError):
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                text = "\n".join(lines[-_READ_LINES:])
        log = "\n".join(what_matters(text, _SHOWN_LINES)) or None
        return LostError(Failure(kind="run", message=f"{how}{last_seen(text, self.source)}", log=log), status)

    def end(self) -> None:
        """Ends the process and all that it started."""
        if not self._is_ended:
            self._is_ended = True
            self.channel.close()
            kill_with_all_it_started(self.pid)


class Host:
    """
    A process that has loaded the subject.

    Raises:
        LayoutDoctorError: It cannot be loaded.
    """

    def __init__(self, launcher: Launcher, process: Process, request: Request) -> None:
        self.process = process
        self._launcher, self._request = launcher, request
        try:
            self.loaded = process.answer(Loaded)
        except (LostError, LayoutDoctorError) as error:
            process.end()
            if isinstance(error, LostError):
                raise SubjectError(f"cannot load {process.source or 'the model'}: {error}") from error
            raise

    def begin(self, configuration: Configuration, *, is_again: bool = False) -> Process:
        """
        A worker of a configuration; if the host cannot be forked, it loads the subject for itself.

        Raises:
            LostError: It cannot be started.
        """
        log = self.file(configuration.name)
        order = Begin(configuration=configuration, is_again=is_again, log=log)
        if self.loaded.forks:
            return self.process.fork(order)
        return self._launcher.fork(Load(request=self._request, begin=order, log=log))

    def file(self, name: str) -> str:
        """A new file in the folder of the run."""
        return self._launcher.file(name)

    def end(self) -> None:
        """Ends the host and all that it started."""
        self.process.end()


class Launcher:
    """
    A process that has imported torch and Inductor, kept for as many subjects as are diagnosed.

    Attributes:
        directory: For files of the run; gone when the launcher is closed.

    Raises:
        TransportError: It cannot be started.
    """

    def __init__(self) -> None:
        self._temporary = private_directory()
        self.directory = self._folder = Path(self._temporary.name)
        self._count = 0
        try:
            self._popen, self._process = self._spawn()
        except TransportError:
            self._temporary.cleanup()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._popen.poll() is None

    def load(self, request: Request, reference: str | None = None) -> Host:
        """
        A host of a subject.

        Args:
            reference: File for the reference, if the host only runs the model in eager mode. The compiler is prepared
                meanwhile.

        Raises:
            LayoutDoctorError: The subject cannot be loaded.
        """
        try:
            process = self.fork(Load(request=request, reference=reference, log=self.file("host")))
        except LostError as error:
            raise TransportError(f"cannot start a process for the diagnosis: {error}; see what it printed") from error
        return Host(self, process, request)

    def fork(self, order: Load) -> Process:
        """A process that loads a subject; raises ``LostError``."""
        process = self._process.fork(order)
        process.source = Path(order.request.target or "").name.partition(":")[0]
        process.limit_seconds = order.request.timeout_seconds
        return process

    def file(self, name: str) -> str:
        """A new file in the folder of the run."""
        self._count += 1
        safe = "".join(letter if letter.isalnum() or letter in "-_+" else "_" for letter in name)
        return str(self._folder / f"{self._count}-{safe}")

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A block with a folder for the files of one diagnosis, which is gone at its end."""
        with tempfile.TemporaryDirectory(dir=self.directory, ignore_cleanup_errors=True) as name:
            self._folder = Path(name)
            try:
                yield self._folder
            finally:
                self._folder = self.directory

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Process]:
        if not sys.executable:
            raise TransportError(
                "cannot start a process for the diagnosis: this interpreter does not know its own program "
                "(sys.executable is empty)"
            )
        ours, theirs = channel_pair()
        theirs.set_inheritable(True)
        words = [str(theirs.fileno()), str(self.directory)]
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            popen = subprocess.Popen(
                [sys.executable, *options, "-c", _CODE, *words, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=_standard_error(),
                stderr=_standard_error(),
                cwd=working_folder(self.directory),
                env={**os.environ, **short_waits(os.environ)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise TransportError(
                f"cannot start a process for the diagnosis: {error.strerror or error}; free memory or processes"
            ) from error
        finally:
            theirs.close()

        def returncode() -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return popen.wait(_WAIT_FOR_END_SECONDS)
            return None

        return popen, Process(ours, popen.pid, returncode)

    def close(self) -> None:
        """Ends all processes, and removes all files of the run."""
        if self.is_alive:
            kill_with_all_it_started(self._popen.pid)
        kill_all(of_session(self._popen.pid))  # if it was killed, what it started belongs to nobody
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_WAIT_FOR_END_SECONDS)
        self._process.channel.close()
        self._temporary.cleanup()


def _standard_error() -> int:
    """The descriptor for a launcher's output: our standard error, if there is one."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


# ---------------------------------------------------------------------------------------------- from Python
_kept: tuple[int, dict[str, str], Launcher] | None = None
"""The launcher that calls from Python share, with its process and that process's environment when it was started."""


def kept_launcher() -> Launcher:
    """
    The launcher of this process; a new one if the environment has changed since, or this process was forked.

    Raises:
        TransportError: It cannot be started.
    """
    global _kept  # as many diagnoses as there are share it
    if _kept is not None and _kept[:2] == (os.getpid(), dict(os.environ)) and _kept[2].is_alive:
        return _kept[2]
    close_kept_launcher()
    _kept = os.getpid(), dict(os.environ), Launcher()
    return _kept[2]


@atexit.register
def close_kept_launcher() -> None:
    """Ends the launcher, if there is one."""
    global _kept
    if _kept is not None and _kept[0] == os.getpid():
        _kept[2].close()
    _kept = None
