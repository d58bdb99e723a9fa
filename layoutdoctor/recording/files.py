"""Reads the bytes of a recorded file, unpacked, with one piece in memory at a time; guesses the kind of a file."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES, GZIP_MAGIC
from layoutdoctor.errors import TraceError
from layoutdoctor.files.writing import RECORDING_SUFFIX, opened
from layoutdoctor.units import format_bytes

HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18
_MOST_BLANK_BYTES = 64 << 20
_RECORDING = b"\x82\xb1recording_version"
"""First bytes of the MessagePack of a recording."""
_HAS_EVENTS = re.compile(r'"traceEvents"\s*:')
_KEYS_OF_A_DIAGNOSIS = (re.compile(r'"schema_version"\s*:'), re.compile(r'"layoutdoctor_version"\s*:'))


class TraceFile:
    """
    The bytes of one recorded file, unpacked.

    Attributes:
        most_bytes: Largest number of unpacked bytes that may be read.
        is_packed: Whether the file is gzipped, whatever its name; known once reading has begun.
        is_cut: Whether the packed data end too early or are damaged; known once ``pieces`` has ended.
    """

    def __init__(self, path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.is_packed = False
        self.is_cut = False

    def head(self) -> bytes:
        """
        Returns the first unpacked bytes, at most 64 KiB, without leading white space.

        Raises:
            TraceError: The file cannot be opened or read, is larger than allowed, or holds nothing.
        """
        found, blank_count = b"", 0
        for piece in self.pieces():
            found = (found + piece).lstrip()
            blank_count += len(piece)
            if len(found) >= HEAD_BYTES or (not found and blank_count > _MOST_BLANK_BYTES):
                break
        if not found:
            cut = ", or cut off before its first byte" if self.is_packed else ""
            raise TraceError(f"cannot read {str(self.path)!r}: it is empty{cut}; name a recorded trace")
        return found[:HEAD_BYTES]

    def pieces(self) -> Iterator[bytes]:
        """
        Yields the unpacked bytes in order, in pieces of at most 256 KiB.

        Raises:
            TraceError: The file cannot be opened or read, or is larger than allowed.
        """
        self.is_cut = False
        cannot, byte_count = f"cannot read {str(self.path)!r}", 0
        try:
            with opened(self.path) as stream:
                self.is_packed = stream.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
                source = gzip.GzipFile(fileobj=stream) if self.is_packed else stream
                while piece := source.read1(_PIECE_BYTES):
                    byte_count += len(piece)
                    if byte_count > self.most_bytes:
                        raise TraceError(
                            f"{cannot}: it has more than {format_bytes(self.most_bytes)}"
                            f"{' unpacked' if self.is_packed else ''}, which is the limit; if it is a trace, "
                            f"raise the limit: --max-bytes {2 * self.most_bytes}"
                        )
                    yield piece
        except (EOFError, zlib.error):
            self.is_cut = True
        except gzip.BadGzipFile as error:  # bytes behind the packed data that are not packed do no harm
            self.is_cut = not byte_count or "Not a gzipped file" not in str(error)
        except IsADirectoryError as error:
            advice = "name a trace file in it, or examine all with 'layoutdoctor scan'"
            with contextlib.suppress(OSError, ValueError):
                advice = f"name the file in it, such as {min(one.name for one in self.path.iterdir())!r}"
            raise TraceError(f"{cannot}: it is a directory; {advice}") from error
        except FileNotFoundError as error:
            raise TraceError(f"{cannot}: there is no such file; check the path") from error
        except OSError as error:
            raise TraceError(f"{cannot}: {error.strerror or error}; name a file that can be read") from error

    def text_lines(self, encoding: str) -> Iterator[str]:
        """Yields the lines of a text without their Unix or Windows line ends; raises the errors of ``pieces``."""
        decoder, parts = codecs.getincrementaldecoder(encoding)("replace"), list[str]()
        for piece in self.pieces():
            first, *others = decoder.decode(piece).split("\n")
            parts.append(first)
            for line in others:
                yield "".join(parts).rstrip("\r")
                parts = [line]
        yield "".join(parts).rstrip("\r")


def kind_of_file(path: Path) -> Literal["trace", "recording", "diagnosis"]:
    """
    Guesses the kind of a file from its name and its first bytes; a folder counts as a recording.

    Any other file, and a file that cannot be read, counts as a trace: the reader of traces reports what is wrong.
    """
    with contextlib.suppress(OSError, ValueError):
        if path.is_dir():
            return "recording"
    if path.suffix == RECORDING_SUFFIX:
        return "recording"
    try:
        head = TraceFile(path).head()
    except TraceError:
        return "trace"
    if head.startswith(_RECORDING):
        return "recording"
    return "diagnosis" if is_diagnosis(head.decode("utf-8", "replace")) else "trace"


def is_diagnosis(head: str) -> bool:
    """Whether a text begins like a saved diagnosis, even if it is not a valid one."""
    is_object = head.startswith("{") and not _HAS_EVENTS.search(head)
    return is_object and all(key.search(head) for key in _KEYS_OF_A_DIAGNOSIS)
