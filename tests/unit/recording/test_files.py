from __future__ import annotations

import gzip
import os
from collections import deque
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.files import HEAD_BYTES, TraceFile

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
TEXT = b"".join(b'{"ph": "X", "ts": %d, "id": "%d"},\n' % (number, number * number) for number in range(60_000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def read(path: Path, data: bytes) -> tuple[bytes, TraceFile]:
    path.write_bytes(data)
    file = TraceFile(path)
    return b"".join(file.pieces()), file


def refusal(path: Path, most_bytes: int = MIB) -> str:
    """What is said of a file that cannot be read."""
    file = TraceFile(path, most_bytes)
    with pytest.raises(TraceError) as reading:
        deque(file.pieces(), maxlen=0)
    return str(reading.value)


def test_any_bytes_are_read_as_they_are_and_unpacked_by_what_they_are_not_by_their_name(path: Path) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    parts = [gzip.compress(TEXT[start : start + 100_000], mtime=0) for start in range(0, len(TEXT), 100_000)]
    for data, unpacked in (
        *((b"{}   "[:size], b"{}   "[:size]) for size in (1, 2, 3, 5)),
        (TEXT, TEXT),
        (packed, TEXT),
        (b"".join(parts), TEXT),
        (gzip.compress(b"", mtime=0) * 5_000 + packed + gzip.compress(b"", mtime=0), TEXT),
        *((packed + behind, TEXT) for behind in (b"\0" * 100_000, b"not packed at all", b"\0\0garbage")),
    ):
        found, file = read(path, data)

        assert found == unpacked
        assert (file.is_packed, file.is_cut) == (data is not unpacked and len(data) > 5, False)
        assert (file.head(), b"".join(file.pieces())) == (unpacked[:HEAD_BYTES], unpacked)  # and once more


def test_damaged_data_give_what_is_before_the_damage(path: Path) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    damaged = bytearray(packed)
    damaged[-6] ^= 0xFF  # in the checksum, behind all data
    for data in (bytes(damaged), *(packed + packed[:length] for length in (2, 5, 10, 1_000))):
        found, file = read(path, data)

        assert found.startswith(TEXT)
        assert file.is_cut
    for missing in (1, 8, 9, 1_000, 100_000):
        found, file = read(path, packed[:-missing])

        assert TEXT.startswith(found)
        assert len(found) > len(TEXT) - 40 * missing
        assert file.is_cut


def test_a_file_that_is_larger_than_allowed_is_given_up(path: Path) -> None:
    path.write_bytes(b"{" * (MIB + 1))

    assert refusal(path, MIB) == (
        f"cannot read {str(path)!r}: it has more than 1.00 MiB, which is the limit; if it is a trace, "
        "raise the limit: --max-bytes 2097152"
    )
    path.write_bytes(gzip.compress(b"0" * (8 * MIB), 1))
    assert "more than 5.00 MiB unpacked, which is the limit" in refusal(path, 5 * MIB)


@pytest.mark.parametrize(
    ("data", "cut"),
    [
        (b"", ""),
        (b" \n\t", ""),
        (gzip.compress(b"", mtime=0), ", or cut off before its first byte"),
        (gzip.compress(TEXT, mtime=0)[:10], ", or cut off before its first byte"),
        (b"\x1f\x8bgarbage", ", or cut off before its first byte"),
    ],
)
def test_a_file_that_holds_nothing_says_so(path: Path, data: bytes, cut: str) -> None:
    path.write_bytes(data)
    with pytest.raises(TraceError) as error:
        TraceFile(path).head()

    assert str(error.value) == f"cannot read {str(path)!r}: it is empty{cut}; name a recorded trace"


def test_what_cannot_be_opened_is_named(path: Path, tmp_path: Path) -> None:
    path.write_bytes(TEXT)
    locked = tmp_path / "locked"
    locked.touch(0)
    reasons = {
        tmp_path / "missing": "there is no such file; check the path",
        tmp_path: "it is a directory; name the file in it, such as 'locked'",
        path / "inner": "Not a directory",
        tmp_path / "a\0b": "embedded null byte",
        **({locked: "Permission denied"} if os.geteuid() else {}),
    }
    for place, reason in reasons.items():
        assert refusal(place).startswith(f"cannot read {str(place)!r}: {reason}")


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)

    assert refusal(path) == f"cannot read {str(path)!r}: it is a pipe or a device; name a file that can be read"
