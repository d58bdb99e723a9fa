from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from collections import deque
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording import files
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
    ):
        found, file = read(path, data)

        assert found == unpacked
        assert (file.is_packed, file.is_cut, file.byte_count) == (
            data is not unpacked and len(data) > 5,
            False,
            len(found),
        )


def test_damage_keeps_what_stands_before_it(path: Path) -> None:
    packed = gzip.compress(TEXT, mtime=0)
    damaged = bytearray(packed)
    damaged[-6] ^= 0xFF  # in the checksum, behind all data
    for data in (bytes(damaged), *(packed + packed[:length] for length in (2, 5, 10, 1_000))):
        found, file = read(path, data)

        assert found.startswith(TEXT)
        assert file.is_cut

    # Damage in the middle keeps what stands before it.
    middle = len(TEXT) // 2
    compressor = zlib.compressobj(wbits=31)
    start = compressor.compress(TEXT[:middle]) + compressor.flush(zlib.Z_FULL_FLUSH)
    end = compressor.compress(TEXT[middle:]) + compressor.flush()

    found, file = read(path, start + b"\xff" * 100 + end)  # a block of a kind that does not exist

    assert (found, file.is_cut) == (TEXT[:middle], True)


@pytest.mark.parametrize("behind", [b"\0" * 100_000, b"not packed at all", b"\0\0garbage"], ids=repr)
def test_what_stands_behind_the_last_packed_part_is_ignored_as_gzip_does(path: Path, behind: bytes) -> None:
    found, file = read(path, gzip.compress(TEXT, mtime=0) + behind[:99_999])

    assert (found, file.is_cut) == (TEXT, False)


@pytest.mark.parametrize("missing", [1, 8, 9, 1_000, 100_000])
def test_packed_data_that_end_too_early_give_what_they_hold(path: Path, missing: int) -> None:
    packed = gzip.compress(TEXT, mtime=0)[:-missing]
    found, file = read(path, packed)

    assert found == zlib.decompressobj(31).decompress(packed)
    assert TEXT.startswith(found)
    assert len(found) > len(TEXT) - 40 * missing
    assert file.is_cut


def test_a_file_can_be_read_again_from_its_start(path: Path) -> None:
    path.write_bytes(gzip.compress(TEXT, mtime=0))
    file = TraceFile(path)

    assert file.head() == TEXT[:HEAD_BYTES]
    assert file.byte_count == 0
    assert b"".join(file.pieces()) == b"".join(file.pieces()) == TEXT
    assert file.byte_count == len(TEXT)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty; name a recorded trace"),
        (b" \n\t", "it is empty; name a recorded trace"),
        (gzip.compress(b"", mtime=0), "it is empty, or cut off before its first byte; name a recorded trace"),
        (gzip.compress(TEXT, mtime=0)[:10], "it is empty, or cut off before its first byte; name a recorded trace"),
        (b"\x1f\x8bgarbage", "it is empty, or cut off before its first byte; name a recorded trace"),
    ],
)
def test_a_file_that_holds_nothing_says_so(path: Path, data: bytes, words: str) -> None:
    path.write_bytes(data)
    with pytest.raises(TraceError) as error:
        TraceFile(path).head()

    assert str(error.value) == f"cannot read {str(path)!r}: {words}"


def test_what_cannot_be_opened_is_named(path: Path, tmp_path: Path) -> None:
    path.write_bytes(TEXT)
    locked = tmp_path / "locked"
    locked.touch(0)
    reasons = {
        tmp_path / "missing": "there is no such file; check the path",
        tmp_path: "it is a directory; name the trace file in it",
        path / "inner": "Not a directory",
        tmp_path / "a\0b": "embedded null byte",
        **({locked: "Permission denied"} if os.geteuid() else {}),
    }
    for place, reason in reasons.items():
        assert refusal(place).startswith(f"cannot read {str(place)!r}: {reason}")


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)

    assert refusal(path) == (
        f"cannot read {str(path)!r}: it is a pipe or a device, and a trace is read more than once; "
        "write it to a file and name that"
    )


def test_a_file_that_is_larger_than_allowed_or_white_space_alone_is_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"{" * (MIB + 1))

    assert refusal(path, MIB) == (
        f"cannot read {str(path)!r}: it has more than 1.00 MiB, which is the limit; if it is a trace all the same, "
        "raise the limit: --max-bytes 2097152"
    )

    # A file of white space is given up.
    monkeypatch.setattr(files, "MOST_WHITE_SPACE_BYTES", 2 * MIB)
    path.write_bytes(b" \n" * (2 * MIB))
    expected = f"cannot read {str(path)!r}: its first 2.00 MiB are white space; expected a recorded trace"
    assert refusal(path, 1 << 30) == expected
    with pytest.raises(TraceError, match="white space"):
        TraceFile(path).head()


def test_a_packed_file_that_would_fill_the_memory_stops_at_the_limit(path: Path) -> None:
    path.write_bytes(gzip.compress(b"0" * (200 * MIB), 1))
    tracemalloc.start()
    try:
        found = refusal(path, 50 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "more than 50.0 MiB unpacked, which is the limit" in found
    assert found.endswith(f"--max-bytes {100 * MIB}")
    assert peak < 16 * MIB
