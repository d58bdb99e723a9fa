"""
What the process that runs a diagnosis and the process that watches over it say to each other.

Values in MessagePack with a length in front, over pipes: data, never code.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from layoutdoctor.diagnosis.records import Configuration, Cure, Failure, Mode, PositiveSeconds, Trial
from layoutdoctor.diagnosis.writing import trace_name
from layoutdoctor.recording.recording import Iteration, Recording
from layoutdoctor.recording.saved import pack, unpacked_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.recording.recording import Head
    from layoutdoctor.units import Seconds

DEFAULT_TIMEOUT_SECONDS = 1800.0
"""For one configuration: longer than any compile that somebody waits for."""

SHORTEST_START_SECONDS = 120.0
"""A process gets at least this long until its model begins to load: importing torch takes its time."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """
    One step forward.

    Attributes:
        stage: What is being done now, such as ``"inductor: compiling"``.
    """

    stage: str
    done: int
    total: int


class StageClock:
    """
    Tells what it is told to somebody, and how long each stage took, those that only count on added up.

    Attributes:
        seconds: Of each stage that has ended, in their order.
    """

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        self.seconds: dict[str, Seconds] = {}
        self._progress = progress
        self._stage, self._began = "starting", time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Another stage begins, or the same one goes on."""
        stage = _COUNTING.sub("", progress.stage)
        if stage != self._stage:
            self.end()
            self._stage = stage
        self._progress(progress)

    def end(self) -> dict[str, Seconds]:
        """The seconds, with those of the stage that is under way."""
        now = time.monotonic()
        self.seconds[self._stage] = round(self.seconds.get(self._stage, 0.0) + now - self._began, 2)
        self._began = now
        return self.seconds


LENGTH_BYTES = 4
"""In front of every message, most significant first."""

PROFILE = 0
"""In place of how many calls to time: iterations are profiled, with the memory kept."""

KEEP_MEMORY = (1 << 8 * LENGTH_BYTES) - 1
"""In place of how many calls to time: from now on the memory that a call frees is kept for the next one."""

TURNS = "measure"
"""The stage in which configurations take turns: the board says which one is under way."""

_COUNTING = re.compile(r", start \d+|: round \d+(?: of |, ).*")
_BOARD = struct.Struct("<dqq")
_LONGEST_WAIT_SECONDS = 120.0
_LOOK_SECONDS = 0.002
_READ_BYTES = 2**16
MOST_MESSAGE_BYTES = 2**30
"""A length above this is no length: the other side wrote something else into the pipe."""

LostStatus = Literal["crashed", "timed_out"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What all messages share: frozen, built by keyword."""


class Proposal(Message, frozen=True, kw_only=True):
    """A cure that what was seen of a trial speaks for, and the bytes of the tensors that it is about."""

    cure: Cure
    bytes_moved: int = 0


class TrialMemo(Message, frozen=True, kw_only=True):
    """
    What a process has to know of a trial that another process ran, beside its record.

    Attributes:
        key: Fingerprint of the options and formats in effect.
        code: Fingerprint of the generated code; None where not all of it is known, or there is none.
        compile_seconds: Wall time of the first call; None for eager.
        onednn: oneDNN's version and instruction set, as its log says.
        proposals: The cures that may help.
        leaves_out_backward: Whether layout optimization is on in the forward, and the backward was not looked at.
        how: Lines to paste.
    """

    key: str | None = None
    code: str | None = None
    compile_seconds: float | None = None
    peak_memory_bytes: int | None = None
    onednn: tuple[str | None, str | None] = (None, None)
    proposals: tuple[Proposal, ...] = ()
    leaves_out_backward: bool = False
    how: str | None = None


class Lost(Message, frozen=True, kw_only=True):
    """A configuration that took its process with it; the failure has the last lines of what the process printed."""

    status: LostStatus
    failure: Failure


class Kept(Message, frozen=True, kw_only=True):
    """
    What there is of a diagnosis.

    Attributes:
        recordings: Of each trial that is done, in order; all with the newest head.
        memos: Of each trial by its configuration's name.
        derived: Configurations that were made of the requested ones.
    """

    recordings: tuple[Recording, ...] = ()
    memos: dict[str, TrialMemo] = {}
    derived: tuple[Configuration, ...] = ()

    @property
    def head(self) -> Head | None:
        """What all of them share; None where there is none yet."""
        return self.recordings[0].head if self.recordings else None

    def trial(self, name: str) -> Trial | None:
        """A configuration's trial; None where it is not done."""
        return next((recording.trial for recording in self.recordings if recording.name == name), None)

    def with_trial(self, recording: Recording, memo: TrialMemo | None = None) -> Kept:
        """
        The same with one more trial, or with what is known now of one that is there; all get its head.

        Its graphs and iterations, and its memo, may be left out where they are here already.
        """
        found = {known.name: msgspec.structs.replace(known, head=recording.head) for known in self.recordings}
        before = found.get(recording.name)
        if before is not None and not recording.was_profiled:
            trial = msgspec.structs.replace(recording.trial, graphs=before.trial.graphs)
            recording = msgspec.structs.replace(before, head=recording.head, trial=trial)
        found[recording.name] = recording
        memos = self.memos if memo is None else {**self.memos, recording.name: memo}
        return Kept(recordings=tuple(found.values()), memos=memos, derived=self.derived)

    def with_derived(self, configurations: tuple[Configuration, ...]) -> Kept:
        """The same with more configurations that were made of the requested ones."""
        return msgspec.structs.replace(self, derived=(*self.derived, *configurations))

    def without_profiles(self) -> Kept:
        """As much as another process has to know that goes on from here."""
        return msgspec.structs.replace(
            self, recordings=tuple(without_profile(recording) for recording in self.recordings)
        )


def without_profile(recording: Recording) -> Recording:
    """A recording whose graphs and iterations somebody else keeps."""
    trial = msgspec.structs.replace(recording.trial, graphs=())
    return msgspec.structs.replace(recording, trial=trial, iterations=(), was_profiled=False)


class Request(Message, frozen=True, kw_only=True):
    """
    What a diagnosis was asked for, in this process or in another one.

    Attributes:
        target: As on the command line; None where it was handed over from Python.
        subject_directory: Where a model was saved that is not to be loaded anew: the caller's own, or a script's.
        inputs: As on the command line; of a script its arguments.
        module: The path of the module inside the target that is the subject; None for the whole.
        lower_for: A GPU that is not there, to lower for.
        budget_seconds: For the timing rounds; None lets them go on until there is a verdict.
        trace_directory: Where to keep profiler traces.
        derives: Whether others may follow from these: forced layout optimization, cures, switches of libraries.
        is_quick: Whether an early answer is worth more than a close one: as few further starts as tell anything.
        times_here: Whether the process that runs the configurations times them as well, though each could have one of
            its own for that.
        timed: The one configuration to be timed whenever that is ordered, and nothing else; None for a diagnosis.
        kept: What earlier processes did.
        lost: The configurations that took one with them.
    """

    target: str | None = None
    subject_directory: str | None = None
    inputs: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    module: str | None = None
    mode: Mode = "inference"
    configurations: tuple[Configuration, ...] = ()
    derives: bool = False
    is_quick: bool = False
    lower_for: str | None = None
    budget_seconds: float | None = None
    trace_directory: str | None = None
    command: str | None = None
    kept: Kept = Kept()
    lost: dict[str, Lost] = {}
    times_here: bool = False
    timed: Configuration | None = None

    def trace_file(self, configuration: str) -> Path | None:
        """Where to keep the profiler's trace of a configuration; None where none is wanted."""
        return None if self.trace_directory is None else Path(self.trace_directory) / trace_name(configuration)


class Began(Message, frozen=True, kw_only=True, tag=True):
    """
    Something was begun.

    Attributes:
        configuration: Under which configuration; None where it concerns all.
        stage: What, as in ``Failure.kind``.
        is_new: Whether the time limit starts anew.
    """

    configuration: str | None
    stage: str
    is_new: bool = True


class KeptMore(Message, frozen=True, kw_only=True, tag=True):
    """One more trial is done: what was seen of it, and what another process has to know of it besides."""

    recording: Recording
    memo: TrialMemo


class Derived(Message, frozen=True, kw_only=True, tag=True):
    """Configurations that were made of the requested ones, and come next."""

    configurations: tuple[Configuration, ...]


class Finished(Message, frozen=True, kw_only=True, tag=True):
    """All trials are measured: recordings of all of them, without the graphs and iterations that were sent."""

    recordings: tuple[Recording, ...]


class Refused(Message, frozen=True, kw_only=True, tag=True):
    """There will be no diagnosis, for a reason that the user can mend; ``kind`` is the class of the error."""

    kind: str
    message: str


class Broken(Message, frozen=True, kw_only=True, tag=True):
    """The process can run nothing more, though it lives; under which configuration that came about."""

    configuration: str
    failure: Failure


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """The one configuration runs and can be timed; a call takes about so long."""

    call_seconds: PositiveSeconds


class Turned(Message, frozen=True, kw_only=True, tag=True):
    """
    What each call of a turn took.

    Attributes:
        page_faults_per_call: How many pages the system had to map in one.
        cpu_seconds: Of all threads of the process so far.
        involuntary_switches: How often one of them had to make room so far.
    """

    seconds: tuple[PositiveSeconds, ...]
    page_faults_per_call: float | None = None
    cpu_seconds: float = 0.0
    involuntary_switches: int | None = None


class Profiled(Message, frozen=True, kw_only=True, tag=True):
    """Iterations under the profiler, in which a generated kernel's graph is called by its code's fingerprint."""

    iterations: tuple[Iteration, ...]


AnyMessage = Began | Progress | KeptMore | Derived | Finished | Refused | Broken | Ready | Turned | Profiled


class TurnBoard:
    """
    Whose turn it is while configurations are timed, and how many trials the supervisor has dealt with, in memory that
    both processes see: telling it wakes nobody up.

    A message for each turn would have the other process run on a core that is being timed.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BOARD.size)

    @staticmethod
    def make() -> int:
        """
        Memory for a board, on which nothing is written.

        Returns:
            An open descriptor, for both processes; whoever made it closes it.

        Raises:
            OSError: There is none.
        """
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("layoutdoctor-turn")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _BOARD.size)
        return descriptor

    def write(self, position: int) -> None:
        """Says that the turn of a configuration, by its position from 0, begins now."""
        _BOARD.pack_into(self._memory, 0, time.monotonic(), position + 1, self._handled())

    def read(self) -> tuple[int, float] | None:
        """The position and the moment (of ``time.monotonic``) of the turn under way; None before the first."""
        moment, number, _ = _BOARD.unpack_from(self._memory, 0)
        return (number - 1, moment) if number else None

    def let_go_on(self) -> None:
        """Says that the supervisor has dealt with one more trial."""
        moment, number, handled = _BOARD.unpack_from(self._memory, 0)
        _BOARD.pack_into(self._memory, 0, moment, number, handled + 1)

    def wait(self, count: int) -> None:
        """Waits until the supervisor has dealt with so many trials; not for ever."""
        end = time.monotonic() + _LONGEST_WAIT_SECONDS
        while self._handled() < count and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)

    def _handled(self) -> int:
        handled: int = _BOARD.unpack_from(self._memory, 0)[2]
        return handled


_message_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage, dec_hook=unpacked_column)


def encode(message: AnyMessage | Request) -> bytes:
    """A message with its length in front."""
    data = pack(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class MessageReader:
    """Makes messages of the bytes that arrive, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """
        The messages that are complete now.

        Raises:
            ValueError: It is no message; nothing after it can be read either.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if length > MOST_MESSAGE_BYTES:
                raise ValueError(f"{length} bytes were announced, more than {MOST_MESSAGE_BYTES}")
            end = LENGTH_BYTES + length
            if len(self._buffer) < end:
                return
            message = _message_decoder.decode(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
            yield message


class MessagePipe:
    """The end of a pipe from which another process's messages come, one at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._reader = MessageReader()
        self._waiting: list[AnyMessage] = []

    def hear(self, limit_seconds: float) -> AnyMessage:
        """
        The next message.

        Raises:
            TimeoutError: It did not come in time.
            EOFError: Nobody is there any more who could send one.
            ValueError: It is no message.
        """
        end = time.monotonic() + limit_seconds
        while not self._waiting:
            if not select.select([self._descriptor], [], [], max(end - time.monotonic(), 0.0))[0]:
                raise TimeoutError
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                raise EOFError
            self._waiting += self._reader.feed(data)
        return self._waiting.pop(0)

    def close(self) -> None:
        """Hears nothing more."""
        os.close(self._descriptor)


class Listener:
    """
    Whom the process that runs a diagnosis tells what it does: nobody, unless a subclass listens.

    Attributes:
        progress: Called at every step.
        may_restart: Whether another process watches, keeps what is done, and would go on if this one could not.
    """

    may_restart = False

    def __init__(self, progress: Callable[[Progress], None] | None = None) -> None:
        self.progress = progress or (lambda step: None)

    def began(self, configuration: str | None, stage: str, *, is_new: bool = True) -> None:
        """Told what begins, in the terms of ``Began``."""

    def turn(self, configuration: str) -> None:
        """Told whose turn it is to be timed."""

    def derived(self, configurations: tuple[Configuration, ...]) -> None:
        """Told which configurations were made of the requested ones, before the first of them begins."""

    def keep(self, recording: Recording, memo: TrialMemo) -> None:
        """Given each trial once it is done."""
