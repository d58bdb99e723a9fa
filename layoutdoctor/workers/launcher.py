"""
The launcher and the processes that come of it, seen from the process that asked for a diagnosis.

Here no torch is imported: a launcher imports it once, a host loads a subject, and workers and starts are forked from
there. If forking is not safe, each worker is a process that loads the subject for itself, and speaks the same language.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from layoutdoctor import errors
from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import LayoutDoctorError, TransportError
from layoutdoctor.examination.applying import how_to_apply
from layoutdoctor.workers.messages import (
    NO_MESSAGE,
    Begin,
    Channel,
    ClosedError,
    Ended,
    Failed,
    Fork,
    Load,
    Loaded,
    Opened,
    Refused,
    Scouted,
    channel_pair,
)
from layoutdoctor.workers.processes import (
    how_it_ended,
    kill_all,
    kill_with_all_it_started,
    last_seen,
    of_session,
    private_directory,
    what_matters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Configuration, TrialStatus
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.messages import Answer, Order, Request, Role

    A = TypeVar("A", bound=Answer)
else:
    A = TypeVar("A")

_CODE = "import sys; sys.path[:] = sys.argv[5:]; from layoutdoctor.run.launcher import main; main(sys.argv[1:5])"
_LONGEST_START_SECONDS = 600.0
_SHOWN_LINES, _READ_LINES = 12, 500
_WAIT_FOR_END_SECONDS = 5.0
_WAIT_FOR_CODE_SECONDS = 60.0  # a launcher that prepares the compiler looks at nothing else
_STACKS_SECONDS = 0.5


class LostError(Exception):
    """
    A process is of no use any more.

    Attributes:
        failure: What happened; None if it was ended by us.
        status: The status of a trial that it takes with it.
    """

    def __init__(self, failure: Failure, status: TrialStatus = "failed", answer: Failed | None = None) -> None:
        super().__init__(failure.message)
        self.failure, self.status, self.answer = failure, status, answer


class Process:
    """
    A process that answers orders.

    Attributes:
        pid: Its number.
        log: File that it prints into, or only its stacks; None if all goes to our standard error.
        source: The user's file, without its folder, whose lines are named if the process is lost.
        limit_seconds: For all that it is asked; None if there is no such limit.

    Args:
        creator: The process that forked it; None if we started it.
        popen: How we started it, else.
    """

    def __init__(
        self,
        channel: Channel,
        pid: int,
        creator: Process | None = None,
        log: Path | None = None,
        source: str = "",
        popen: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.channel, self.pid, self.log, self.source = channel, pid, log, source
        self._creator, self._popen = creator, popen
        self._children: dict[int, int | None] = {}
        self._held: list[tuple[Answer, int | None]] = []
        self._is_ended = False
        self.limit_seconds: Seconds | None = None

    def ask(self, order: Order, kind: type[A], timeout_seconds: Seconds | None = None) -> A:
        """
        Sends an order and waits for the answer.

        Raises:
            LostError: The process failed, ended, or did not answer in time.
            LayoutDoctorError: It refuses, for a reason that the user can mend.
        """
        self.tell(order)
        return self.answer(kind, timeout_seconds)

    def tell(self, order: Order) -> None:
        """Sends an order; that the process is gone shows when it is asked for the answer."""
        with contextlib.suppress(ClosedError):
            self.channel.send(order)

    def answer(self, kind: type[A] | tuple[type[A], ...], timeout_seconds: Seconds | None = None) -> A:
        """The answer to an order; raises as ``ask`` does."""
        return self.answer_of(self._received(timeout_seconds)[0], kind)

    @staticmethod
    def answer_of(message: Answer, kind: type[A] | tuple[type[A], ...]) -> A:
        """A message that has to be of a kind."""
        if isinstance(message, kind):
            return message
        raise LostError(Failure(kind="measure", message=f"it answered with {type(message).__name__}"), "crashed")

    def fork(self, order: Begin | Fork, log: Path | None = None) -> Process:
        """A process that this one forks; raises as ``ask`` does."""
        self.tell(order)
        return self.opened(log)

    def opened(self, log: Path | None = None) -> Process:
        """The process that an order asked this one to fork; raises as ``ask`` does."""
        message, descriptor = self._received(_LONGEST_START_SECONDS)
        if not isinstance(message, Opened) or descriptor is None:
            raise LostError(Failure(kind="measure", message=f"it answered with {type(message).__name__}"), "crashed")
        self._children[message.pid] = None
        return Process(Channel.of_descriptor(descriptor), message.pid, self, log, self.source)

    def peek(self, kind: type[A]) -> A:
        """The answer, which ``answer`` will return as well; raises as that does."""
        received = self._received(None)
        self._held.insert(0, received)
        return self.answer_of(received[0], kind)

    def _received(self, timeout_seconds: Seconds | None) -> tuple[Answer, int | None]:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            message, descriptor = self._held.pop(0) if self._held else self._next(deadline)
        except TimeoutError:
            raise self._overdue(timeout_seconds or 0.0) from None
        except ClosedError as error:
            raise self._lost(str(error)) from None
        if isinstance(message, Failed):
            raise LostError(message.failure, "failed", message)
        if isinstance(message, Refused):
            raise getattr(errors, message.kind, LayoutDoctorError)(message.message)
        return message, descriptor

    def _next(self, deadline: float | None) -> tuple[Answer, int | None]:
        """The next message but those about processes that have ended."""
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            message, descriptor = self.channel.receive(left)
            if not isinstance(message, Ended):
                return cast("Answer", message), descriptor
            self._children[message.pid] = message.returncode

    def _overdue(self, seconds: Seconds) -> LostError:
        """What a process that does not answer was doing: faulthandler writes its stacks into the log."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(_STACKS_SECONDS)
        return self._failed(f"it took more than {self.limit_seconds or seconds:g} s", "timed_out")

    def _lost(self, why: str) -> LostError:
        """Of a process that closed its end, or that sent what is no message."""
        if why == NO_MESSAGE:
            return self._failed(why, "crashed")
        code = None
        if self._creator is not None:
            code = self._creator.returncode_of(self.pid)
        elif self._popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._popen.wait(_WAIT_FOR_END_SECONDS)
        return self._failed("the process ended" if code is None else how_it_ended(code).rstrip(","), "crashed")

    def _failed(self, how: str, status: TrialStatus) -> LostError:
        text = self.printed()
        log = "\n".join(what_matters(text, _SHOWN_LINES)) or None
        return LostError(Failure(kind="run", message=f"{how}{last_seen(text, self.source)}", log=log), status)

    def returncode_of(self, pid: int) -> int | None:
        """How a process that this one forked has ended; None if nobody knows."""
        end = time.monotonic() + _WAIT_FOR_CODE_SECONDS
        while self._children.get(pid) is None and time.monotonic() < end:
            try:
                ready, _, _ = select.select([self.channel.fileno()], [], [], 0.1)
                if ready:
                    message, descriptor = self.channel.receive(1.0)
                    if isinstance(message, Ended):
                        self._children[message.pid] = message.returncode
                    else:
                        self._held.append((cast("Answer", message), descriptor))
            except (ClosedError, OSError, ValueError, TimeoutError):
                break
        return self._children.get(pid)

    def printed(self, lines: int = _READ_LINES) -> str:
        """The end of what the process printed."""
        if self.log is None:
            return ""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def end(self) -> None:
        """Ends the process and all that it started."""
        if not self._is_ended:
            self._is_ended = True
            self.channel.close()
            kill_with_all_it_started(self.pid)


class Launcher:
    """
    A process that has imported torch and Inductor, kept for as many subjects as are diagnosed.

    Attributes:
        directory: For files of the run; gone when the launcher is closed.
    """

    def __init__(self) -> None:
        self._temporary = private_directory()
        self.directory = Path(self._temporary.name)
        self._folder = self.directory
        self._count = self._forgotten = 0
        try:
            self._popen, channel = self._spawn("fork")
        except TransportError:
            self._temporary.cleanup()
            raise
        self._process = Process(channel, self._popen.pid, popen=self._popen)
        self._alone: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._popen.poll() is None

    def scout(self, request: Request) -> Process:
        """
        A process that loads a subject and runs it once in eager mode, while the compiler is prepared.

        Raises:
            TransportError: It cannot be started.
        """
        stacks = self.file("scout")
        self._process.tell(Load(request=request, scouts=True, stacks=stacks))
        return self._opened(stacks, request)

    def load(self, request: Request, scout: Process | None = None) -> Host | Loaded:
        """
        A host of a subject.

        Args:
            scout: Its answer may come first: if the model does not run, the host is not waited for.

        Returns:
            What the subject is, if the scout has said that it has no convolution: no host is needed.

        Raises:
            LayoutDoctorError: The subject cannot be loaded, or the model does not run.
        """
        kind = (request.device or "cpu").partition(":")[0]
        if kind != "cpu" and request.lower_for is None:
            return Host(self, self.load_alone(request), request)
        stacks = self.file("host")
        self._process.tell(Load(request=request, stacks=stacks))
        if scout is not None:
            channels = [self._process.channel.fileno(), scout.channel.fileno()]
            ready, _, _ = select.select(channels, [], [], _LONGEST_START_SECONDS)
            if channels[1] in ready and (loaded := self._scouted(scout)) is not None:
                return loaded
        return Host(self, self._opened(stacks, request), request)

    def _scouted(self, scout: Process) -> Loaded | None:
        """What a scout says without a convolution; nobody waits for the host then, nor if the model does not run."""
        self._forgotten += 1
        with contextlib.suppress(LostError):  # if it was lost while loading, the host will be as well
            loaded = scout.peek(Scouted).loaded
            if loaded is not None:
                return loaded
        self._forgotten -= 1
        return None

    def _opened(self, stacks: str, request: Request) -> Process:
        try:
            for _ in range(self._forgotten):
                self._process.opened().end()
            self._forgotten = 0
            process = self._process.opened(Path(stacks))
        except LostError as error:
            raise TransportError(f"cannot start a process for the diagnosis: {error}; see what it printed") from error
        process.source = _source_of(request)
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

    def load_alone(self, request: Request) -> Process:
        """A process that loads the subject for itself; raises as ``load`` does."""
        popen, channel = self._spawn("alone")
        self._alone = [*(one for one in self._alone if one.poll() is None), popen]
        stacks = self.file("host")
        process = Process(channel, popen.pid, popen=popen, log=Path(stacks), source=_source_of(request))
        process.tell(Load(request=request, stacks=stacks))
        return process

    def _spawn(self, kind: str) -> tuple[subprocess.Popen[bytes], Channel]:
        if not sys.executable:
            raise TransportError(
                "cannot start a process for the diagnosis: this interpreter does not know its own program "
                "(sys.executable is empty)"
            )
        ours, theirs = channel_pair()
        theirs.set_inheritable(True)
        words = [str(theirs.fileno()), str(os.getpid()), str(self.directory), kind]
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            popen = subprocess.Popen(
                [sys.executable, *options, "-c", _CODE, *words, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=_standard_error(),
                stderr=_standard_error(),
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
        return popen, ours

    def close(self) -> None:
        """Ends all processes, and removes all files of the run."""
        for popen in (self._popen, *self._alone):
            kill_with_all_it_started(popen.pid)
            kill_all(of_session(popen.pid))  # if it was killed, what it started belongs to nobody
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(_WAIT_FOR_END_SECONDS)
        self._process.channel.close()
        self._temporary.cleanup()


def _loaded(process: Process, request: Request) -> Loaded:
    """What a process has loaded; one that cannot load it is ended."""
    try:
        return process.answer(Loaded, request.timeout_seconds)
    except (LostError, LayoutDoctorError):
        process.end()
        raise


def _source_of(request: Request) -> str:
    return Path(request.target or "").name.partition(":")[0]


def _standard_error() -> int:
    """Where a launcher's output goes: our standard error, or nowhere if there is none."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


class Host:
    """
    A loaded subject.

    Attributes:
        loaded: What it is.
    """

    def __init__(self, launcher: Launcher, process: Process, request: Request) -> None:
        self._launcher, self._request, self._process = launcher, request, process
        self._is_used = False
        try:
            self.loaded = _loaded(process, request)
        except LostError as error:
            raise errors.SubjectError(f"cannot load {_source_of(request) or 'the model'}: {error}") from error

    @property
    def forks(self) -> bool:
        """Whether workers are forked from it."""
        return self.loaded.no_fork is None

    def begin(self, role: Role, configuration: Configuration | None = None, path: str = "") -> Process:
        """
        A process that does something with the subject; if it cannot be forked, one that loads it for itself.

        Raises:
            LostError: It cannot be started.
            LayoutDoctorError: The subject cannot be loaded again.
        """
        name = role if configuration is None else configuration.name
        log = self._launcher.file(name)
        order = Begin(role=role, configuration=configuration, path=path, log=log, here=not self.forks)
        if self.forks:
            return self._process.fork(order, Path(log))
        process = self._process
        if self._is_used:
            process = self._launcher.load_alone(self._request)
            _loaded(process, self._request)
        self._is_used = True
        process.log = Path(log)
        process.tell(order)
        return process

    def how(self, configuration: Configuration) -> str:
        """Lines to paste that apply a configuration."""
        return how_to_apply(configuration, frozenset(self.loaded.parameter_ranks), self.loaded.call)

    def file(self, name: str) -> str:
        """A new file in the folder of the run."""
        return self._launcher.file(name)

    def end(self) -> None:
        """Ends the host and all that it started."""
        self._process.end()
