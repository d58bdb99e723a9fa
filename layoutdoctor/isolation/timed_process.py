"""A process that runs one configuration whenever it is told to, and sleeps while others have their turn."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.errors import SubjectError
from layoutdoctor.isolation.load import core_count
from layoutdoctor.isolation.messages import (
    KEEP_MEMORY,
    LENGTH_BYTES,
    PROFILE,
    Kept,
    MessagePipe,
    Profiled,
    Ready,
    Refused,
    TurnBoard,
    Turned,
    encode,
)
from layoutdoctor.isolation.processes import (
    available_bytes,
    how_it_ended,
    kill_with_all_it_started,
    peak_resident_bytes,
    remove_scratch,
    start_child,
    wait_until_ended,
)
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Configuration, TrialStatus
    from layoutdoctor.isolation.messages import AnyMessage, Request
    from layoutdoctor.recording.recording import Iteration
    from layoutdoctor.units import Bytes, Seconds

LONGEST_SECONDS = 900.0
"""A process that has not answered after this long is given up."""

_LEAVING_SECONDS = 2.0


class TimedProcess:
    """
    One configuration in a process of its own, which is started here and gets ready.

    Args:
        request: By which the subject is loaded.

    Raises:
        TransportError: It cannot be started.

    Attributes:
        call_seconds: What a call takes, about; once it is ready.
        page_faults: Pages that the system has mapped for its timed calls so far; None where it does not say.
        cpu_seconds: What its threads have used so far.
        involuntary_switches: How often one of them had to make room so far.
        peak_bytes: Most memory that it has had when it was ready; None where not known.
        failure: Why it can be timed no more; None where it can.
        status: What that makes of its configuration.
    """

    def __init__(self, request: Request, configuration: Configuration) -> None:
        self.name = configuration.name
        self.call_seconds = 0.0
        self.page_faults: float | None = 0.0
        self.cpu_seconds = 0.0
        self.involuntary_switches = 0
        self.peak_bytes: Bytes | None = None
        self.failure: str | None = None
        self.status: TrialStatus = "failed"
        # Every child is given a board; what it prints is the model's own, and nobody reads it.
        self._process, self._requests, messages = start_child(TurnBoard.make(), subprocess.DEVNULL)
        self._messages = MessagePipe(messages)
        self._write(encode(msgspec.structs.replace(request, timed=configuration, kept=Kept(), lost={})))

    def _write(self, data: bytes) -> None:
        """Hands over bytes; one that has ended gets none, and how it ended is said where its answer is missing."""
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while rest:
                rest = rest[os.write(self._requests, rest) :]

    def end(self) -> None:
        """Ends it, and all that it started; it may first remove what the model's file has made."""
        self._messages.close()
        os.close(self._requests)
        wait_until_ended(self._process.pid, _LEAVING_SECONDS)
        kill_with_all_it_started(self._process.pid)
        self._process.wait()
        remove_scratch(self._process.pid)

    def wait_until_ready(self, limit_seconds: Seconds = LONGEST_SECONDS) -> None:
        """
        Waits until it can be timed.

        Raises:
            SubjectError: It died, took too long, or refused.
        """
        message = self._hear(limit_seconds)
        if not isinstance(message, Ready):
            raise self._lost("the process said what was not asked for")
        self.call_seconds = message.call_seconds
        self.peak_bytes = peak_resident_bytes(self._process.pid)

    def turn(self, calls: int, limit_seconds: Seconds = LONGEST_SECONDS) -> tuple[Seconds, ...]:
        """
        So many calls, now; seconds of each.

        Raises:
            SubjectError: It died, or took too long.
        """
        message = self._turned(calls, limit_seconds)
        if len(message.seconds) != calls:
            raise self._lost("the process said what was not asked for")
        per_call = message.page_faults_per_call
        self.page_faults = None if per_call is None or self.page_faults is None else self.page_faults + per_call * calls
        self.cpu_seconds = message.cpu_seconds
        self.involuntary_switches = message.involuntary_switches or 0
        return message.seconds

    def keep_memory(self, limit_seconds: Seconds = LONGEST_SECONDS) -> None:
        """
        From now on the memory that a call frees is kept for the next one.

        Raises:
            SubjectError: It died, or took too long.
        """
        self._turned(KEEP_MEMORY, limit_seconds)

    def _turned(self, order: int, limit_seconds: Seconds) -> Turned:
        self._write(order.to_bytes(LENGTH_BYTES, "big"))
        message = self._hear(limit_seconds)
        if not isinstance(message, Turned):
            raise self._lost("the process said what was not asked for")
        return message

    def profile(self, limit_seconds: Seconds = LONGEST_SECONDS) -> tuple[Iteration, ...]:
        """
        Iterations under the profiler, which keep their memory, as the calls do from now on.

        Raises:
            SubjectError: It died, took too long, or could not record them.
        """
        self._write(PROFILE.to_bytes(LENGTH_BYTES, "big"))
        message = self._hear(limit_seconds)
        if not isinstance(message, Profiled):
            raise self._lost("the process said what was not asked for")
        return message.iterations

    def _hear(self, limit_seconds: Seconds) -> AnyMessage:
        try:
            message = self._messages.hear(limit_seconds)
        except TimeoutError:
            what = f"it took longer than {limit_seconds:g} s, the limit for one configuration,"
            raise self._lost(what, "timed_out") from None
        except EOFError:
            raise self._lost(how_it_ended(self._process.wait()), "crashed") from None
        except ValueError as error:
            raise self._lost(f"the process sent what is no message ({error})", "crashed") from error
        if isinstance(message, Refused):
            self.failure = message.message
            raise SubjectError(f"{self.name}: {message.message}")
        return message

    def _lost(self, what: str, status: TrialStatus = "failed") -> SubjectError:
        self.failure, self.status = f"{what} while it was timed", status
        return SubjectError(f"{self.name}: {what}")


@contextlib.contextmanager
def started(
    request: Request,
    configurations: Sequence[Configuration],
    on_failure: Callable[[TimedProcess], None] | None = None,
    limit_seconds: Seconds = LONGEST_SECONDS,
) -> Iterator[dict[str, TimedProcess]]:
    """
    Each configuration in a process of its own, ready to be timed; all of them end with the block.

    One more gets ready at a time than there are cores, so that none idles, and none is started without memory for it.

    Args:
        request: By which the subject is loaded.
        on_failure: Told of a configuration whose process did not get ready; None raises.

    Raises:
        SubjectError: One did not get ready, or there is too little memory for all.
        TransportError: A process cannot be started.
    """
    running: list[TimedProcess] = []
    waiting: deque[TimedProcess] = deque()
    ready: dict[str, TimedProcess] = {}

    def wait_for_the_next() -> None:
        process = waiting.popleft()
        try:
            process.wait_until_ready(limit_seconds)
            ready[process.name] = process
        except SubjectError:
            if on_failure is None:
                raise
            on_failure(process)

    try:
        for configuration in configurations:
            while len(waiting) > core_count() or (waiting and not _is_room_for(len(waiting) + 1, ready.values())):
                wait_for_the_next()
            if not _is_room_for(1, ready.values()):
                raise _too_little_memory(len(configurations), ready.values())
            running.append(TimedProcess(request, configuration))
            waiting.append(running[-1])
        while waiting:
            wait_for_the_next()
        yield ready
    finally:
        for process in running:
            process.end()


def _is_room_for(count: int, ready: Iterable[TimedProcess]) -> bool:
    """Whether so many that are not ready yet fit beside those that are, as far as is known."""
    available = available_bytes()
    return available is None or count * _most_bytes(ready) <= available


def _most_bytes(ready: Iterable[TimedProcess]) -> Bytes:
    return max((process.peak_bytes or 0 for process in ready), default=0)


def _too_little_memory(count: int, ready: Iterable[TimedProcess]) -> SubjectError:
    return SubjectError(
        f"{count} processes of up to {format_bytes(_most_bytes(ready))} each do not fit into the memory, of which "
        f"{format_bytes(available_bytes() or 0)} are free now"
    )
