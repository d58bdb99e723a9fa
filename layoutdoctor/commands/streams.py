"""
Standard streams that cannot be written: a full disk, or a reader that went away, costs what is said and nothing else.

Faces the subcommands; imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


def silence(stream: TextIO) -> None:
    """
    Gives a stream that cannot be written somewhere to go: Python flushes the standard ones once more as it ends.

    Args:
        stream: Standard output or standard error.
    """
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


class _Lossy:
    """A stream that loses what it cannot write, as on a full disk or to a reader that went away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            silence(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lossy_stderr() -> Iterator[None]:
    """Meanwhile standard error loses what cannot be written: progress that nobody can read costs no diagnosis."""
    stream = sys.stderr
    sys.stderr = cast("TextIO", _Lossy(stream))
    try:
        yield
    finally:
        sys.stderr = stream
