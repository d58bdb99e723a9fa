"""
The child process of a diagnosis: reads what to do, does it, and says at once what is done.

Whatever happens to it costs the configuration under way: ``isolation.supervisor`` starts it and watches.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import (
    DeviceLostError,
    LayoutDoctorError,
    SubjectError,
    TransportError,
    UnsupportedTorchError,
    first_line,
    needs_torch,
)
from layoutdoctor.isolation.messages import (
    LENGTH_BYTES,
    Began,
    Broken,
    Derived,
    Finished,
    KeptMore,
    Listener,
    Refused,
    Request,
    TurnBoard,
    encode,
)
from layoutdoctor.isolation.processes import be_first_to_go, die_with
from layoutdoctor.recording.saved import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.isolation.messages import AnyMessage, TrialMemo
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.subject import LoadedSubject

_HIGH_DESCRIPTOR = 300
"""Out of the way of a model that closes the descriptors it thinks nobody uses."""

STATUS_FORKED = 70
STATUS_MUTE = 71


class Channel(Listener):
    """
    The way to the supervisor.

    A copy of this process that the model forked and let run on has nothing to say and ends.

    Args:
        names: Of the requested configurations, by their position on the board.
    """

    may_restart = True

    def __init__(self, descriptor: int, board: TurnBoard, names: Sequence[str]) -> None:
        super().__init__(progress=self.send)
        self._descriptor = _moved_up(descriptor)
        self._board = board
        self._names = list(names)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._kept_count = 0

    def send(self, message: AnyMessage) -> None:
        """Sends a message; where that is not possible any more, the process ends: another one can go on."""
        if os.getpid() != self._owner:
            os._exit(STATUS_FORKED)
        with self._lock:
            rest = memoryview(encode(message))
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:  # the model closed every file it found, or the supervisor is gone
                with contextlib.suppress(OSError):
                    os.write(2, f"cannot report to layoutdoctor any more: {error.strerror or error}\n".encode())
                os._exit(STATUS_MUTE)

    def began(self, configuration: str | None, stage: str, *, is_new: bool = True) -> None:
        """Says what begins."""
        self.send(Began(configuration=configuration, stage=stage, is_new=is_new))

    def turn(self, configuration: str) -> None:
        """Writes on the board whose turn it is."""
        self._board.write(self._names.index(configuration))

    def derived(self, configurations: tuple[Configuration, ...]) -> None:
        """Says which configurations come next."""
        self._names += [configuration.name for configuration in configurations]
        self.send(Derived(configurations=configurations))

    def keep(self, recording: Recording, memo: TrialMemo) -> None:
        """Hands over a trial that is done, and waits until the board says that it has been dealt with."""
        self.send(KeptMore(recording=recording, memo=memo))
        self._kept_count += 1
        self._board.wait(self._kept_count)


def _moved_up(descriptor: int) -> int:
    """The same pipe under a high number, which processes started from here do not get."""
    try:
        import fcntl

        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except (ImportError, OSError):  # few descriptors are allowed
        os.set_inheritable(descriptor, False)
        return descriptor
    os.close(descriptor)
    return high


def main(words: Sequence[str]) -> NoReturn:
    """
    Does what the supervisor asks, and ends the process.

    Args:
        words: Numbers of two open pipes, to read the request from and to write messages to, of the supervisor, and of
            the memory for the board.
    """
    die_with(int(words[2]))
    sys.argv = [""]
    be_first_to_go()
    faulthandler.enable(all_threads=True)
    with contextlib.suppress(AttributeError, ValueError):
        faulthandler.register(signal.SIGUSR2, all_threads=True)
    board = TurnBoard(int(words[3]))
    stream = FileIO(_moved_up(int(words[0])))
    request: Request = unpack(_read(stream, int.from_bytes(_read(stream, LENGTH_BYTES), "big")), Request)
    channel = Channel(int(words[1]), board, [configuration.name for configuration in request.configurations])
    answer = _answer(request, partial(_load, request), channel, stream)
    for printed in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the model may have closed it
            printed.flush()
    channel.send(answer)
    leave()


def leave() -> NoReturn:
    """The end of a process, in which a thread that the model left waiting for ever keeps nobody."""
    with contextlib.suppress(BaseException):  # such as temporary folders of the model, and of multiprocessing
        atexit._run_exitfuncs()
    os._exit(0)


def _read(stream: FileIO, count: int) -> bytes:
    """So many bytes, or those that there are until the other end is closed."""
    data = b""
    while len(data) < count and (more := stream.read(count - len(data))):
        data += more
    return data


def _answer(request: Request, load: Callable[[], LoadedSubject], channel: Channel, stream: FileIO) -> AnyMessage:
    try:
        if request.timed is not None:
            _serve_turns(load, request.timed, request, channel, stream)
        return Finished(recordings=_record(request, load, channel))
    except DeviceLostError as error:
        failure = Failure(kind=error.stage, message=str(error), log=error.log)
        return Broken(configuration=error.configuration, failure=failure)
    except LayoutDoctorError as error:
        return Refused(kind=type(error).__name__, message=str(error))


def _serve_turns(
    load: Callable[[], LoadedSubject], configuration: Configuration, request: Request, channel: Channel, stream: FileIO
) -> NoReturn:
    """Until the supervisor closes its end; a model that fails now is the end of it as well."""
    from layoutdoctor.run.fresh import serve_turns

    orders = (int.from_bytes(word, "big") for word in iter(lambda: _read(stream, LENGTH_BYTES), b""))
    try:
        serve_turns(load, configuration, request.mode, orders, channel.send, request.trace_file(configuration.name))
    except Exception as error:
        raise SubjectError(first_line(error)) from error
    leave()


def _record(request: Request, load: Callable[[], LoadedSubject], channel: Channel) -> tuple[Recording, ...]:
    try:
        with needs_torch():
            from layoutdoctor.capture.compat import inductor_config
            from layoutdoctor.run.diagnose import record_subject

            inductor_config()  # its cache's folder is made now, so that no model is blamed where it cannot be
    except ModuleNotFoundError:  # of something else: a fault of the installation, with its traceback
        raise
    except (OSError, ImportError, RuntimeError) as error:  # such as a folder for its cache that cannot be made
        raise UnsupportedTorchError(
            f"cannot import torch: {first_line(error)}; see what `python -c 'import torch._inductor'` says"
        ) from error
    channel.began(None, "load")
    return record_subject(load(), request, channel)


def _load(request: Request) -> LoadedSubject:
    if request.subject_directory is None:
        from layoutdoctor.subjects.load import load_requested

        return load_requested(request)
    from layoutdoctor.subjects.transport import load_subject, take_over_settings

    directory = Path(request.subject_directory)
    try:
        take_over_settings(directory)
        return load_subject(directory)
    except LayoutDoctorError as error:
        raise TransportError(str(error)) from error
