"""
Processes that run one configuration each, as copies of one that has imported torch and loaded the model.

Importing and loading takes longer than compiling from Inductor's cache does. Where no copy can be made, because the
model's file has started threads or the system cannot fork, each process starts from nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from layoutdoctor.errors import TransportError
from layoutdoctor.isolation.messages import (
    LENGTH_BYTES,
    SHORTEST_START_SECONDS,
    Ended,
    Forked,
    Kept,
    MessagePipe,
    TurnBoard,
    encode,
)
from layoutdoctor.isolation.processes import (
    kill_with_all_it_started,
    remove_scratch,
    start_child,
    started_by,
    wait_until_ended,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.isolation.messages import AnyMessage, Request

_LEAVING_SECONDS = 2.0
_LOAD_SECONDS = SHORTEST_START_SECONDS  # the first copy waits for the subject
FORK = 0
"""The order for a copy, sent with the two descriptors of its pipes; any other order is the number of a copy to wait
for."""


_Message = TypeVar("_Message", bound="AnyMessage")


class Process(Protocol):
    """A process that can be waited for, as ``subprocess.Popen``."""

    @property
    def pid(self) -> int:
        """Its number, its own until it has been waited for."""

    def wait(self) -> int:
        """Its exit status once it has ended; below 0 for a signal."""


class Started(NamedTuple):
    """A process, the descriptor that its request is written to, and the one that its messages come from."""

    process: Process
    requests: int
    messages: int

    def write(self, data: bytes) -> None:
        """Hands over bytes; one that has ended gets none, and how it ended is said where its answer is missing."""
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while rest:
                rest = rest[os.write(self.requests, rest) :]

    def end(self) -> None:
        """Ends it, and all that it started; what has loaded the model's file may first remove what that has made."""
        for descriptor in (self.messages, self.requests):
            os.close(descriptor)
        if isinstance(self.process, subprocess.Popen):
            wait_until_ended(self.process.pid, _LEAVING_SECONDS)
        kill_with_all_it_started(self.process.pid)
        self.process.wait()
        remove_scratch(self.process.pid)


def from_nothing() -> Started:
    """
    A process that waits for its request; what it prints is the model's own, and nobody reads it.

    Raises:
        TransportError: It cannot be started.
    """
    return Started(*start_child(TurnBoard.make(), subprocess.DEVNULL))  # every child is given a board


class _UnexpectedError(ValueError):
    """Another message was expected."""


class ForkServer:
    """
    Where the processes for one subject come from: copies of one, once that has begun, else each from nothing.

    Args:
        request: By which the subject is loaded.
    """

    def __init__(self, request: Request) -> None:
        self.request = msgspec.structs.replace(request, kept=Kept(), lost={})
        self._server: Started | None = None
        self._messages: MessagePipe | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[ForkServer]:
        """A block after which what has begun is ended."""
        try:
            yield self
        finally:
            self.end()

    def begin(self, chosen: Sequence[Configuration] | None = None) -> None:
        """
        Starts the process that is to be copied, where it can be; it imports what is needed, and loads the subject for
        the first copy. A subject that uses a GPU cannot be copied.

        Args:
            chosen: What will be started; None for all that was asked for.
        """
        if self._server is not None or not hasattr(socket, "send_fds"):
            return
        with contextlib.suppress(TransportError):  # the next process that cannot be started says why
            self._server = from_nothing()
            self._messages = MessagePipe(self._server.messages)
            configurations = self.request.configurations if chosen is None else tuple(chosen)
            request = msgspec.structs.replace(self.request, configurations=configurations, forks=True)
            self._server.write(encode(request))

    def end(self) -> None:
        """Ends the process that has begun, and its copies."""
        if self._server is not None:
            self._server.end()
        self._server = self._messages = None

    def processes(self) -> set[int]:
        """The process that has begun, and all that it started."""
        pid = None if self._server is None else self._server.process.pid
        return set() if pid is None else {pid, *started_by(pid)}

    def start(self, configuration: Configuration) -> Started:
        """
        A process that prepares one configuration and then waits for its turns.

        Raises:
            TransportError: It cannot be started.
        """
        process = self._copy() or from_nothing()
        process.write(encode(msgspec.structs.replace(self.request, timed=configuration)))
        return process

    def _copy(self) -> Started | None:
        """A process that has loaded the subject; None where there can be none, for a reason that others will tell."""
        try:
            return None if self._server is None else self._fork(self._server)
        except (OSError, EOFError, ValueError):
            self.end()
            return None

    def _fork(self, server: Started) -> Started:
        requests_end, requests = os.pipe()
        messages, messages_end = os.pipe()
        try:
            with socket.socket(fileno=os.dup(server.requests)) as control:
                socket.send_fds(control, [FORK.to_bytes(LENGTH_BYTES, "big")], [requests_end, messages_end])
            pid = self._answer(Forked).pid
        except BaseException:
            os.close(requests)
            os.close(messages)
            raise
        finally:
            os.close(requests_end)
            os.close(messages_end)
        if pid is None:
            os.close(requests)
            os.close(messages)
            raise TransportError("cannot copy a process of the diagnosis: there is no room for one more")
        return Started(_Copy(pid, self), requests, messages)

    def wait_for(self, pid: int) -> int:
        """Exit status of a copy once it has ended; below 0 for a signal."""
        if self._server is not None:
            self._server.write(pid.to_bytes(LENGTH_BYTES, "big"))
            with contextlib.suppress(OSError, EOFError, ValueError):
                return self._answer(Ended).returncode
        return -signal.SIGKILL  # all copies end with the process that made them

    def _answer(self, kind: type[_Message]) -> _Message:
        assert self._messages is not None
        message = self._messages.hear(_LOAD_SECONDS)
        if not isinstance(message, kind):
            raise _UnexpectedError(f"expected {kind.__name__}, got {type(message).__name__}")
        return message


class _Copy(NamedTuple):
    pid: int
    server: ForkServer

    def wait(self) -> int:
        return self.server.wait_for(self.pid)
