"""
The file of a saved diagnosis before anything is known of it: its bytes, and what it is if it is no diagnosis.

Faces ``records``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from layoutdoctor.errors import RecordError
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16
_LONGEST_REASON = 300


def read_saved(path: str | Path, max_bytes: int) -> bytes:
    """
    The bytes of a file.

    Args:
        path: Which file; a pipe or a device is read to its end.
        max_bytes: How many it may have.

    Raises:
        RecordError: It cannot be read, or has more bytes than that.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as stream:
            data = stream.read(max_bytes + 1)
    except IsADirectoryError as error:
        raise RecordError(f"cannot read {str(path)!r}: it is a directory; name the saved diagnosis in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RecordError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > max_bytes:
        raise RecordError(
            f"cannot read {str(path)!r}: it has more than {format_bytes(max_bytes)}, which is the limit of a saved "
            "diagnosis; if it is one all the same, raise the limit: layoutdoctor.load(path, max_bytes=...)"
        )
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens at once also a pipe that nobody writes to, which is then empty; without that it would wait forever."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def why_unreadable(data: bytes, error: Exception) -> str:
    """
    Why data are no JSON object with a schema version, and what to do.

    Args:
        data: The bytes, without a byte order mark.
        error: What decoding them raised.
    """
    expected = "expected a diagnosis saved by layoutdoctor (--output FILE.json)"
    if not data.strip():
        return f"it is empty; {expected}"
    if data.startswith(_GZIP_MAGIC):
        return "it is packed with gzip; unpack it first (gunzip)"
    if data.startswith(_UTF_16_MARKS):
        return "it is UTF-16 text, expected UTF-8; save it with --output FILE.json instead of redirecting"
    if data.lstrip().startswith(b"["):
        return f"it is a list; {expected}, one in each file"
    if b'"traceEvents"' in data[:_HEAD_BYTES]:
        return "it is a recorded trace; examine it first (layoutdoctor trace FILE --output SAVED.json)"
    return f"{reason_of(error)}; {expected}"


def reason_of(error: Exception) -> str:
    """
    What decoding found wrong, on one line of a bearable length.

    Args:
        error: What decoding raised.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
