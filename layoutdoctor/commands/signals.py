"""Turns signals that end a process into an exception, so that files are cleaned up and results are reported."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

_ENDING = {
    "SIGINT": "interrupted from the keyboard",
    "SIGTERM": "ended from outside (SIGTERM)",
    "SIGHUP": "its terminal was closed (SIGHUP)",
}


class Interrupted(KeyboardInterrupt):
    """
    The command was stopped by a signal, which the text of the exception names.

    Attributes:
        exit_status: 128 plus the number of the signal, as in shells.
    """

    def __init__(self, number: int) -> None:
        super().__init__(_ENDING[signal.Signals(number).name])
        self.exit_status = 128 + number


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """A block in which signals that would end the process raise ``Interrupted``; no effect outside the main thread."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in _ENDING:
            number = getattr(signal, name, None)
            # A signal with another handler, or ignored as under nohup, stays as it is.
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _raise_interrupted)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_interrupted(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Interrupted(number)
