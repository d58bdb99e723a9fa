"""
Starts a launcher and the processes that are forked from it, and talks to them from the caller's process.

Nothing here imports torch. The launcher imports torch once, a host loads a subject, and workers and starts are forked
from the host. If forking the host is not safe, as on a GPU, each worker is forked from the launcher. Such a worker
loads the subject itself, and answers the same orders.
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
from layoutdoctor.workers.processes import (
    cores_in_use,
    kill_all,
    kill_with_all_it_started,
    of_session,
    working_folder,
)
from layoutdoctor.workers.settling import short_waits

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.messages import Answer, Order, Proposal, Request

A = TypeVar("A")

_CODE = "import sys; sys.path[:] = sys.argv[3:]; from layoutdoctor.run.launcher import main; main(sys.argv[1:3])"
_LONGEST_START_SECONDS = 600.0
_SHOWN_LINES, _READ_LINES = 12, 500
_WAIT_FOR_END_SECONDS = 5.0
_WAIT_FOR_CODE_SECONDS = 60.0  # a launcher reports no exit codes while it prepares the compiler
_STACKS_SECONDS = 0.5


class LostError(Exception):
    """
    A process has failed, has ended, or does not answer.

    Attributes:
        failure: The failure for the trial of the process.
        status: The status for the trial of the process; ``failed`` if it reported an exception of model or compiler.
        proposals: Cures that may help against the failure.
    """

    def __init__(self, failure: Failure, status: TrialStatus, proposals: tuple[Proposal, ...] = ()) -> None:
        super().__init__(failure.message)
        self.failure, self.status, self.proposals = failure, status, proposals


class Process:
    """
    A process that answers orders.

    Attributes:
        log: File for the output of the process, or for its stacks only; None if it prints to our standard error.
        source: Name of the user's file, without its folder; messages name its lines if the process is lost.
        limit_seconds: Time limit for each answer; None for no limit. Forks of the process get the same source and
            limit.

    Args:
        returncode: Function that waits for the end of the process and returns its exit code; None if it is not known.
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
        self._children: dict[int, int] = {}  # exit codes of its forks
        self._is_ended = False

    def ask(self, order: Order, kind: type[A]) -> A:
        """
        Sends an order and waits for the answer.

        Raises:
            LostError: The process failed, ended, or did not answer in time.
            LayoutDoctorError: The process refused the order, for a reason that the user can remove.
        """
        self.tell(order)
        return self.answer(kind)

    def tell(self, order: Order) -> None:
        """Sends an order. If the process has ended, waiting for the answer raises the error."""
        with contextlib.suppress(ClosedError):
            self.channel.send(order)

    def answer(self, kind: type[A], left_seconds: Seconds | None = None) -> A:
        """
        Waits for the answer to an order; raises as ``ask`` does.

        Args:
            left_seconds: Time limit for this answer; None for the usual limit.
        """
        return self._received(kind, self.limit_seconds if left_seconds is None else left_seconds)[0]

    def fork(self, order: Load | Begin | Fork) -> Process:
        """Makes this process fork another one for an order; raises as ``ask`` does."""
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
            code = self._returncode()
            raise self._failed("the process ended" if code is None else how_it_ended(code), "crashed") from None
        if isinstance(message, kind):
            return message, descriptor
        if isinstance(message, Failed):
            raise LostError(message.failure, "failed", message.proposals)
        if isinstance(message, Refused):
            raise getattr(errors, message.kind)(message.message)
        raise LostError(Failure(kind="measure", message=f"it answered with {type(message).__name__}"), "crashed")

    def _next(self, deadline: float | None) -> tuple[Answer, int | None]:
        """Waits for the next message; notes messages about ended forks and skips them."""
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            message, descriptor = self.channel.receive(left)
            if not isinstance(message, Ended):
                return cast("Answer", message), descriptor
            self._children[message.pid] = message.returncode

    def _returncode_of(self, pid: int) -> int | None:
        """Waits for the exit code of a fork of this process; None if it is not known."""
        deadline = time.monotonic() + _WAIT_FOR_CODE_SECONDS
        with contextlib.suppress(ClosedError, TimeoutError):
            while pid not in self._children and isinstance(
                ended := self.channel.receive(max(deadline - time.monotonic(), 1e-3))[0], Ended
            ):
                self._children[ended.pid] = ended.returncode
        return self._children.get(pid)

    def _overdue(self, seconds: Seconds) -> LostError:
        """Makes the error for a process that does not answer, after SIGUSR2 made it write its stacks into the log."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(_STACKS_SECONDS)
        return self._failed(f"the process took more than {self.limit_seconds or seconds:g} s", "timed_out")

    def _failed(self, how: str, status: TrialStatus) -> LostError:
        text = ""
        if self.log is not None:
            with contextlib.suppress(OSError):
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
                text = "\n".join(lines[-_READ_LINES:])
        log = "\n".join(what_matters(text, _SHOWN_LINES)) or None
        return LostError(Failure(kind="run", message=f"{how}{last_seen(text, self.source)}", log=log), status)

    def end(self) -> None:
        """Ends the process and all processes that it started."""
        if not self._is_ended:
            self._is_ended = True
            self.channel.close()
            kill_with_all_it_started(self.pid)


class Host:
    """
    A process that has loaded the subject.

    Raises:
        LayoutDoctorError: The subject cannot be loaded.
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
        Starts a worker of a configuration. If the host cannot be forked, the worker loads the subject itself.

        Raises:
            LostError: The worker cannot be started.
        """
        log = self.file(configuration.name)
        order = Begin(configuration=configuration, is_again=is_again, log=log)
        if self.loaded.forks:
            return self.process.fork(order)
        return self._launcher.fork(Load(request=self._request, begin=order, log=log))

    def file(self, name: str) -> str:
        """Returns an unused path in the folder of the diagnosis."""
        return self._launcher.file(name)

    def end(self) -> None:
        """Ends the host and all processes that it started."""
        self.process.end()


class Launcher:
    """
    A process that has imported torch and Inductor, and serves any number of diagnoses.

    The load of the machine when the launcher starts decides how threads wait in all its processes.

    Attributes:
        directory: Folder for temporary files; it is removed when the launcher is closed.

    Raises:
        TransportError: The process cannot be started.
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
        """Whether the process of the launcher runs."""
        return self._popen.poll() is None

    def load(self, request: Request, reference: str | None = None) -> Host:
        """
        Starts a host and waits until it has loaded the subject.

        Args:
            reference: File for the reference, if the host is to run the model in eager mode; None if it forks workers.

        Raises:
            LayoutDoctorError: The process cannot be started, or the subject cannot be loaded.
        """
        try:
            process = self.fork(Load(request=request, reference=reference, log=self.file("host")))
        except LostError as error:
            raise TransportError(
                f"cannot start a process for the diagnosis: {error}; see what the process printed"
            ) from error
        return Host(self, process, request)

    def fork(self, order: Load) -> Process:
        """Forks a process that loads a subject; raises ``LostError``."""
        process = self._process.fork(order)
        process.source = Path(order.request.target).name.partition(":")[0]
        process.limit_seconds = order.request.timeout_seconds
        return process

    def file(self, name: str) -> str:
        """Returns an unused path in the folder of the present diagnosis; outside a diagnosis, in ``directory``."""
        self._count += 1
        safe = "".join(letter if letter.isalnum() or letter in "-_+" else "_" for letter in name)
        return str(self._folder / f"{self._count}-{safe}")

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A block with a folder for the files of one diagnosis; the folder is removed at the end of the block."""
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
        words = [str(theirs.fileno()), str(self.directory)]
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            popen = subprocess.Popen(
                [sys.executable, *options, "-c", _CODE, *words, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=_standard_error(),
                stderr=_standard_error(),
                cwd=working_folder(self.directory),
                env={**os.environ, **short_waits(os.environ, cores_in_use)},
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
        """Ends all processes of the launcher, and removes all files in ``directory``."""
        if self.is_alive:
            kill_with_all_it_started(self._popen.pid)
        kill_all(of_session(self._popen.pid))  # if the launcher was killed, its children have another parent
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_WAIT_FOR_END_SECONDS)
        self._process.channel.close()
        self._temporary.cleanup()


def _standard_error() -> int:
    """Returns the descriptor for a launcher's output: our standard error; ``DEVNULL`` if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


# ---------------------------------------------------------------------------------------------- from Python
_kept: tuple[int, dict[str, str], Launcher] | None = None
"""The launcher that calls from Python share, with the id and the environment of the process that started it."""


def kept_launcher() -> Launcher:
    """
    Returns the launcher of this process.

    A new launcher is started if none runs, if the environment has changed, or if this process is a fork.

    Raises:
        TransportError: The launcher cannot be started.
    """
    global _kept  # all diagnoses share it
    if _kept is not None and _kept[:2] == (os.getpid(), dict(os.environ)) and _kept[2].is_alive:
        return _kept[2]
    close_kept_launcher()
    _kept = os.getpid(), dict(os.environ), Launcher()
    return _kept[2]


@atexit.register
def close_kept_launcher() -> None:
    """Ends the launcher, if there is one and this process started it; a fork of this process only forgets it."""
    global _kept
    if _kept is not None and _kept[0] == os.getpid():
        _kept[2].close()
    _kept = None
