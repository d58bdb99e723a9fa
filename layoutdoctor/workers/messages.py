"""
Messages between the process that asked for a diagnosis and the processes that run the model.

MessagePack over socket pairs: data, never code. A forked process gets a socket pair of its own, whose other end travels
to the parent behind the message that announces the process.
"""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis import Configuration, Environment, Failure, Lack, Observed, Subject
from layoutdoctor.diagnosis.configurations import PACKAGE_SUFFIX, Following
from layoutdoctor.diagnosis.record import PositiveSeconds
from layoutdoctor.diagnosis.subject import Cure, InputUse, Mode
from layoutdoctor.examination.advice.applying import ModelCall
from layoutdoctor.files.writing import file_name_of
from layoutdoctor.recording.recording import Iteration
from layoutdoctor.recording.saved import pack, unpacked_column

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds

DEFAULT_TIMEOUT_SECONDS = 1800.0
"""For one configuration: longer than any compile that somebody waits for."""

MOST_MESSAGE_BYTES = 2**30
"""A length above this is no length: the model wrote into the socket."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen, built by keyword."""


class Progress(msgspec.Struct, frozen=True):
    """
    One step forward.

    Attributes:
        stage: Such as ``"profiling: 2 of 9"``.
        done: How much of the whole run is done, 0 to ``total``.
        left_seconds: Estimate of the time until the answer; None before there is one.
    """

    stage: str
    done: int
    total: int = 100
    left_seconds: float | None = None


class Request(Message, frozen=True, kw_only=True):
    """
    A diagnosis as it was asked for.

    Attributes:
        target: As on the command line; None if the model was handed over from Python.
        subject_directory: Folder with the saved model of the caller or of a script; None loads the target.
        inputs: As on the command line; of a script its arguments.
        threads: Inside one operation, on a CPU; None for as many as the target asks for.
        module: Path of the submodule that is diagnosed; None for the whole model.
        compile_arguments: Of ``torch.compile``, for all compiled configurations; None for those of the target.
        lower_for: A GPU that is not there, to lower for.
        package: File for the package of the best configuration that AOTInductor compiles; None for none.
        budget_seconds: For rounds and starts; None as long as compiling took, at least 10 s, at most 60 s.
        trace_directory: Where to keep profiler traces.
        derives: Further configurations that may follow: forced layout optimization, cures, switches of libraries.
        tries_all: Whether configurations that compile long are derived too, such as max-autotune.
        is_timed: Whether rounds and starts are wanted; False records and profiles only.
        timeout_seconds: For one configuration; None for no limit.
    """

    target: str | None = None
    subject_directory: str | None = None
    inputs: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    module: str | None = None
    mode: Mode = "inference"
    configurations: tuple[Configuration, ...] = ()
    compile_arguments: dict[str, Any] | None = None
    derives: Following = "nothing"
    tries_all: bool = False
    lower_for: str | None = None
    package: str | None = None
    budget_seconds: float | None = None
    trace_directory: str | None = None
    command: str | None = None
    is_timed: bool = True
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS


def package_file(folder: Path, configuration: str) -> Path:
    """The file in a run's folder that keeps what AOTInductor compiled of a configuration."""
    return folder / f"{file_name_of(configuration)}{PACKAGE_SUFFIX}"


class Proposal(Message, frozen=True, kw_only=True):
    """A cure that may help a trial, and the bytes of the tensors that it is about."""

    cure: Cure
    bytes_moved: int = 0


# ---------------------------------------------------------------------------------------------- orders
class Load(Message, frozen=True, kw_only=True, tag=True):
    """
    To the launcher: fork a process that loads this subject and answers ``Loaded``, unless it is a worker.

    Attributes:
        reference: The process then runs the model in eager mode, answers ``Ran``, leaves the reference in this file and
            answers ``Ran`` again. None if it forks workers.
        begin: The configuration whose worker it is, where no process that has loaded the subject may be forked.
        log: File for its stacks, if it crashes or is asked for them; what the user's code prints goes to stderr, or of
            a worker into this file.
    """

    request: Request
    log: str
    reference: str | None = None
    begin: Begin | None = None


class Begin(Message, frozen=True, kw_only=True, tag=True):
    """
    To the process that loaded the subject: fork a worker for a configuration.

    Attributes:
        is_again: Whether it compiles as a user does, to be timed; else under capture.
        log: File that its standard output and error go to.
    """

    configuration: Configuration
    is_again: bool = False
    log: str

    @property
    def package(self) -> Path:
        """The file of the package, if AOTInductor compiles the configuration."""
        return package_file(Path(self.log).parent, self.configuration.name)


class Compile(Message, frozen=True, kw_only=True, tag=True):
    """
    To a worker that is prepared.

    Attributes:
        kernels_at_once: How many C++ kernels it builds side by side.
    """

    kernels_at_once: int = 1


class Fork(Message, frozen=True, kw_only=True, tag=True):
    """To a worker that has compiled and can be forked: one more start."""

    log: str


class Check(Message, frozen=True, kw_only=True, tag=True):
    """To a start: run once, and compare outputs and gradients with the reference in a file, if there is one."""

    path: str | None


class WarmUp(Message, frozen=True, kw_only=True, tag=True):
    """To a start: run until caches and heap have settled."""


class Turn(Message, frozen=True, kw_only=True, tag=True):
    """To a start: time so many calls."""

    calls: int


class ProfileIteration(Message, frozen=True, kw_only=True, tag=True):
    """
    To a start: time so many calls, then run one iteration under the profiler.

    Attributes:
        trace_file: Where the trace of the quietest iteration so far is kept.
    """

    calls: int
    trace_file: str | None = None


class MeasureMemory(Message, frozen=True, kw_only=True, tag=True):
    """To a start: measure the most memory of one iteration."""


class Bandwidth(Message, frozen=True, kw_only=True, tag=True):
    """To a start: measure how many bytes per second a copy of a large tensor moves."""


Order = Load | Begin | Compile | Fork | Check | WarmUp | Turn | ProfileIteration | MeasureMemory | Bandwidth


# ---------------------------------------------------------------------------------------------- answers
class Opened(Message, frozen=True, kw_only=True, tag=True):
    """A process was forked; the socket that reaches it follows."""

    pid: int


class Ended(Message, frozen=True, kw_only=True, tag=True):
    """A forked process has ended; the return code is negative for a signal."""

    pid: int
    returncode: int


class Loaded(Message, frozen=True, kw_only=True, tag=True):
    """
    The subject is loaded.

    Attributes:
        parameter_ranks: Of the model's parameters and buffers, each once.
        compile_arguments: Of ``torch.compile``, as asked for, or as the target was compiled.
        forks: Whether forking this process is safe.
        files: Those of the user's that were loaded, without installed packages.
    """

    subject: Subject
    environment: Environment
    parameter_ranks: tuple[int, ...]
    call: ModelCall
    compile_arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    forks: bool = True
    files: tuple[str, ...] = ()


class Ran(Message, frozen=True, kw_only=True, tag=True):
    """
    The model ran in eager mode for the first time, or the reference is in its file.

    Attributes:
        may_convolve: False if all operations are ATen's own and none is a convolution.
        input_uses: What each tensor of the example input is read as; empty if not known.
        room: After the first call, how many further processes like this one a GPU's memory holds; None on a CPU, or if
            it is not known.
    """

    notes: tuple[str, ...] = ()
    may_convolve: bool = True
    input_uses: tuple[InputUse, ...] = ()
    room: int | None = None


class Prepared(Message, frozen=True, kw_only=True, tag=True):
    """A worker's model is prepared, and it waits for ``Compile``; the key is that of options and formats in effect."""

    key: str


class Compiled(Message, frozen=True, kw_only=True, tag=True):
    """
    A worker has compiled, and waits for ``Fork``; if it cannot be forked, it is a start itself.

    Attributes:
        code: Fingerprint of the generated code; None if not all of it is known, or there is none.
        compile_seconds: Wall time of the first call; None for eager.
        proposals: The cures that may help.
        forks: Whether it can be forked.
    """

    trial: Observed
    code: str | None = None
    compile_seconds: float | None = None
    proposals: tuple[Proposal, ...] = ()
    forks: bool = True


class Checked(Message, frozen=True, kw_only=True, tag=True):
    """
    A start has made its first calls.

    Attributes:
        trial: As in ``Compiled``, with outputs, gradients and the graphs of these calls.
        proposals: The cures that may help an eager model, whose operations are recorded only now.
    """

    trial: Observed
    proposals: tuple[Proposal, ...] = ()


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """
    A start is warm and can be timed.

    Attributes:
        call_seconds: About how long a call takes.
    """

    call_seconds: PositiveSeconds


class Turned(Message, frozen=True, kw_only=True, tag=True):
    """How long each call of a turn took, and the processor time of all threads of the process meanwhile."""

    seconds: tuple[PositiveSeconds, ...]
    cpu_seconds: float = 0.0


class Profiled(Message, frozen=True, kw_only=True, tag=True):
    """An iteration under the profiler, or why there is none."""

    iteration: Iteration | None = None
    lack: Lack | None = None


class MeasuredMemory(Message, frozen=True, kw_only=True, tag=True):
    """Most bytes of tensors alive above the start of an iteration; None if torch cannot say."""

    peak_memory_bytes: int | None


class Copied(Message, frozen=True, kw_only=True, tag=True):
    """Bytes per second that a copy moves; None if it was not measured."""

    bytes_per_second: float | None


class Failed(Message, frozen=True, kw_only=True, tag=True):
    """The model raised; ``proposals`` are the cures that may help against that."""

    failure: Failure
    proposals: tuple[Proposal, ...] = ()


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """There will be no diagnosis, for a reason that the user can remove; ``kind`` is the class of the error."""

    kind: str
    message: str


Answer = (
    Opened
    | Ended
    | Loaded
    | Ran
    | Prepared
    | Compiled
    | Checked
    | Ready
    | Turned
    | Profiled
    | MeasuredMemory
    | Copied
    | Failed
    | Refused
)

_decoder: msgspec.msgpack.Decoder[Order | Answer] = msgspec.msgpack.Decoder(Order | Answer, dec_hook=unpacked_column)


# ---------------------------------------------------------------------------------------------- channels
STATUS_FORKED = 70
"""Exit status of a copy of a process that the model forked, once it writes to the process's channel."""


class ClosedError(Exception):
    """The process at the other end is gone."""


class NoMessageError(ClosedError):
    """What the process at the other end sent is no message."""

    def __init__(self) -> None:
        super().__init__("it sent what is no message")


class Channel:
    """
    One end of a socket pair, by its descriptor.

    Only the process that made it writes to it: a copy of that process, which the model forked, ends as it tries to.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # programs that the model starts do not get it
        self._connection = Connection(descriptor)
        self._owner = os.getpid()

    def adopt(self) -> None:
        """Makes a channel that came with a fork this process's own."""
        self._owner = os.getpid()

    def fileno(self) -> int:
        """The descriptor, for ``selectors``."""
        return self._connection.fileno()

    def close(self) -> None:
        """Closes this end; the other one reads the end of the conversation."""
        self._connection.close()

    def send(self, message: Order | Answer, descriptor: int | None = None) -> None:
        """
        Sends a message; the open descriptor goes with ``Opened``.

        Raises:
            ClosedError: The other end is gone.
        """
        if os.getpid() != self._owner:
            os._exit(STATUS_FORKED)
        try:
            self._connection.send_bytes(pack(message))
            if descriptor is not None:
                send_handle(self._connection, descriptor, None)
        except OSError as error:
            raise ClosedError(error.strerror or str(error)) from error

    def receive(self, timeout_seconds: Seconds | None = None) -> tuple[Order | Answer, int | None]:
        """
        The next message, and the descriptor that came with it.

        Raises:
            ClosedError: The other end is gone.
            NoMessageError: It sent what is no message.
            TimeoutError: Nothing came within the time.
        """
        try:
            is_there = self._connection.poll(timeout_seconds)
            message = _decoder.decode(self._connection.recv_bytes(MOST_MESSAGE_BYTES)) if is_there else None
            descriptor = recv_handle(self._connection) if isinstance(message, Opened) else None
        except (msgspec.MsgspecError, ValueError) as error:
            raise NoMessageError from error
        except (EOFError, OSError) as error:
            if str(error) == "bad message length":
                raise NoMessageError from error
            raise ClosedError("it has ended") from error
        if message is None:
            raise TimeoutError
        return message, descriptor


def channel_pair() -> tuple[Channel, socket.socket]:
    """A channel, and the other end of it for another process."""
    ours, theirs = socket.socketpair()
    return Channel(ours.detach()), theirs
