"""
Messages between the process that asked for a diagnosis and the processes that run the model.

Messages travel as MessagePack over socket pairs: data, never code. Each forked process has its own socket pair. It
keeps one end. The other end is sent to the process that asked for the fork, after the message ``Opened``.
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
"""Time limit for one configuration; longer than the compile of any usual model."""

MOST_MESSAGE_BYTES = 2**30
"""Largest length of a message. A larger length means that the model wrote into the socket."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all messages: frozen, built with keyword arguments."""


class Progress(msgspec.Struct, frozen=True):
    """
    The progress of a diagnosis.

    Attributes:
        stage: The present stage, such as ``"profiling: 2 of 9"``.
        done: Part of the diagnosis that is done, from 0 to ``total``.
        left_seconds: Estimated time until the end of the diagnosis; None before it can be estimated.
    """

    stage: str
    done: int
    total: int = 100
    left_seconds: float | None = None


class Request(Message, frozen=True, kw_only=True):
    """
    The model, the configurations and the options of a diagnosis.

    Attributes:
        target: The target as on the command line; empty if the model was given from Python.
        subject_directory: Folder with the saved model of the caller or of a script; None loads the target.
        inputs: Input specifications as on the command line; for a script, its arguments.
        threads: Number of threads inside one operation on a CPU; None for the number that the target sets.
        module: Path of the submodule that is diagnosed; None for the whole model.
        compile_arguments: Arguments of ``torch.compile`` for all compiled configurations; None for the target's own.
        lower_for: A GPU that this machine lacks, for which the graphs are lowered; None measures on the device.
        package: File for the package of the best configuration that AOTInductor compiles; None makes no package.
        budget_seconds: Time for rounds and starts; None for the time of compiling, at least 10 s and at most 60 s.
        trace_directory: Folder in which profiler traces are kept; None keeps none.
        derives: Further configurations to try: ``all`` (forced layout optimization, cures, on a GPU also cuDNN's
            benchmark mode and CUDA graphs), ``matrix_products`` (only the cure for matrix products), or ``nothing``.
        tries_all: Whether ``all`` includes max-autotune, which compiles for a long time.
        is_timed: Whether rounds and starts are timed; False records and profiles only.
        timeout_seconds: Time limit for one configuration; None for no limit.
    """

    target: str = ""
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
    """Returns the file in ``folder`` for the package that AOTInductor compiles from a configuration."""
    return folder / f"{file_name_of(configuration)}{PACKAGE_SUFFIX}"


class Proposal(Message, frozen=True, kw_only=True):
    """A cure that may help a trial, and the bytes of the tensors that the cure concerns."""

    cure: Cure
    bytes_moved: int = 0


# ---------------------------------------------------------------------------------------------- orders
class Load(Message, frozen=True, kw_only=True, tag=True):
    """
    An order to the launcher: fork a process that loads this subject.

    Without ``begin``, the process is a host and answers ``Loaded``. With ``begin``, it is a worker.

    Attributes:
        log: File for the stacks of the process, if it crashes or receives SIGUSR2. The user's code prints to stderr in
            a host, and into this file in a worker.
        reference: File for the reference. The host runs the model in eager mode, answers ``Ran``, saves the reference
            and answers ``Ran`` again. None if the host forks workers.
        begin: The order for a worker that loads the subject itself, because no host can be forked; None for a host.
    """

    request: Request
    log: str
    reference: str | None = None
    begin: Begin | None = None


class Begin(Message, frozen=True, kw_only=True, tag=True):
    """
    An order to the process that has loaded the subject: fork a worker for a configuration.

    Attributes:
        is_again: Whether another worker has compiled the configuration: then nothing is captured, and this is timed.
        log: File for the worker's standard output and standard error.
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
    An order to a prepared worker: compile.

    Attributes:
        kernels_at_once: Number of C++ kernels that the worker builds side by side.
    """

    kernels_at_once: int = 1


class Fork(Message, frozen=True, kw_only=True, tag=True):
    """An order to a worker that has compiled and can be forked: fork one more start."""

    log: str


class Check(Message, frozen=True, kw_only=True, tag=True):
    """An order to a start: complete the graphs, and compare results with the reference in ``path``, if it is given."""

    path: str | None


class WarmUp(Message, frozen=True, kw_only=True, tag=True):
    """An order to a start: make a few calls, so that caches and heap settle."""


class Turn(Message, frozen=True, kw_only=True, tag=True):
    """An order to a start: time this number of calls."""

    calls: int


class ProfileIteration(Message, frozen=True, kw_only=True, tag=True):
    """
    An order to a start: time this number of calls, then run one iteration under the profiler.

    Attributes:
        trace_file: File for the trace of the iteration in which the device was busy for the shortest time so far.
    """

    calls: int
    trace_file: str | None = None


class MeasureMemory(Message, frozen=True, kw_only=True, tag=True):
    """An order to a start: measure the peak memory of one iteration."""


class Bandwidth(Message, frozen=True, kw_only=True, tag=True):
    """An order to a start: measure the bytes per second that a copy of a large tensor moves."""


Order = Load | Begin | Compile | Fork | Check | WarmUp | Turn | ProfileIteration | MeasureMemory | Bandwidth


# ---------------------------------------------------------------------------------------------- answers
class Opened(Message, frozen=True, kw_only=True, tag=True):
    """A process was forked; its socket follows this message."""

    pid: int


class Ended(Message, frozen=True, kw_only=True, tag=True):
    """A forked process has ended; ``returncode`` is its exit status, or the negative number of a signal."""

    pid: int
    returncode: int


class Loaded(Message, frozen=True, kw_only=True, tag=True):
    """
    The subject is loaded.

    Attributes:
        parameter_ranks: Numbers of dimensions of the model's parameters and buffers, each number once.
        compile_arguments: The requested arguments of ``torch.compile``, or else those of the target's own compile.
        forks: Whether this process can safely be forked.
        files: The user's imported source files, without installed packages.
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
    The model has run in eager mode for the first time; a second ``Ran`` says that the reference is in its file.

    Attributes:
        may_convolve: Whether the model ran an operation to which layouts may matter, such as a convolution.
        input_uses: Use of each tensor of the example input; empty if not known.
        room: Number of processes like this one, itself included, that fit into the GPU's memory at once; 0 on a CPU, or
            if not known.
    """

    notes: tuple[str, ...] = ()
    may_convolve: bool = True
    input_uses: tuple[InputUse, ...] = ()
    room: int = 0


class Prepared(Message, frozen=True, kw_only=True, tag=True):
    """A worker is prepared and waits for ``Compile``; ``key`` is a hash of the options and formats in effect."""

    key: str


class Compiled(Message, frozen=True, kw_only=True, tag=True):
    """
    A worker has compiled, and waits for ``Fork``; if it cannot be forked, it is a start itself.

    Attributes:
        code: Hash of the generated code, or of formats and cures if no code was generated; None if some of the code is
            not known.
        compile_seconds: Wall time of the first call; None for eager.
        proposals: Cures that may help.
        forks: Whether the worker can safely be forked.
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
        trial: The trial of ``Compiled``, with the comparison of outputs and gradients and the graphs of these calls.
        proposals: Cures that may help an eager model, whose operations are recorded in these calls.
    """

    trial: Observed
    proposals: tuple[Proposal, ...] = ()


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """
    A start is warm and can be timed.

    Attributes:
        call_seconds: Approximate time of a call: the shortest call of the warm-up.
    """

    call_seconds: PositiveSeconds


class Turned(Message, frozen=True, kw_only=True, tag=True):
    """The time of each call of a turn, and the processor time of all threads of the process during the turn."""

    seconds: tuple[PositiveSeconds, ...]
    cpu_seconds: float = 0.0


class Profiled(Message, frozen=True, kw_only=True, tag=True):
    """An iteration under the profiler, or the reason why there is none."""

    iterations: tuple[Iteration, ...] = ()
    lacks: tuple[Lack, ...] = ()


class MeasuredMemory(Message, frozen=True, kw_only=True, tag=True):
    """The peak memory of tensors in an iteration, minus the memory at its start; None if it could not be measured."""

    peak_memory_bytes: int | None


class Copied(Message, frozen=True, kw_only=True, tag=True):
    """The bytes per second that a copy moves; None if they were not measured."""

    bytes_per_second: float | None


class Failed(Message, frozen=True, kw_only=True, tag=True):
    """The model or the compiler raised; ``proposals`` are cures that may help against the failure."""

    failure: Failure
    proposals: tuple[Proposal, ...] = ()


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """The process refuses an order, for a reason that the user can remove; ``kind`` is the class of the error."""

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
"""Exit status of a process that the model forked and that tried to write to its parent's channel."""


class ClosedError(Exception):
    """The other end of the channel is closed."""


class NoMessageError(ClosedError):
    """The process at the other end sent bytes that are not a message."""

    def __init__(self) -> None:
        super().__init__("it sent bytes that are not a message")


class Channel:
    """
    One end of a socket pair, given by its file descriptor.

    Only the process that made or adopted the channel may write. A process that the model forked ends if it tries this.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # programs that the model starts do not inherit the channel
        self._connection = Connection(descriptor)
        self._owner = os.getpid()

    def adopt(self) -> None:
        """Makes this process the owner of a channel that its parent made before the fork."""
        self._owner = os.getpid()

    def fileno(self) -> int:
        """Returns the file descriptor, for ``selectors``."""
        return self._connection.fileno()

    def close(self) -> None:
        """Closes this end; the process at the other end then gets a ``ClosedError``."""
        self._connection.close()

    def send(self, message: Order | Answer, descriptor: int | None = None) -> None:
        """
        Sends a message.

        Args:
            descriptor: An open file descriptor to send along; only with ``Opened``.

        Raises:
            ClosedError: The other end of the channel is closed.
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
        Waits for the next message. Returns it, and the file descriptor that came with ``Opened`` (None otherwise).

        Raises:
            ClosedError: The other end of the channel is closed.
            NoMessageError: The process at the other end sent bytes that are not a message.
            TimeoutError: No message came in time.
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


def channel_pair() -> tuple[Channel, Channel]:
    """Makes a channel and its other end, which may be handed to another process."""
    ours, theirs = socket.socketpair()
    return Channel(ours.detach()), Channel(theirs.detach())
