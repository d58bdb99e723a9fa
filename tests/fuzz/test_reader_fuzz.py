"""
Damaged files of every kind: a reader either reads them or says what is wrong, soon, and keeps nothing behind.

An input is made from its number alone (``mutations.mutated``), so a failure names all that is needed to see it again.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuzz.mutations import mutated, seeds

from layoutdoctor import LayoutDoctorError, examine_trace
from layoutdoctor.recording.reading import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

LONGEST_SECONDS = 20
"""Of one input of at most 64 KiB; a hundredth of a second is usual, the rest is for a machine that is busy."""

MOST_GROWTH_BYTES = 48 << 20
EXAMINED_EVERY = 8
"""Reading is most of the work; the analysis behind it sees every eighth input."""


class _TookTooLongError(Exception):
    pass


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends what takes longer than an input may."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise _TookTooLongError

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def read_all(numbers: range, folder: Path) -> tuple[int, int]:
    """Reads the inputs of these numbers; returns how many were read and how many refused."""
    read = refused = 0
    for number in numbers:
        name, data = mutated(number)
        path = folder / name
        path.write_bytes(data)
        try:
            with time_limit():
                read_trace(path)
                if number % EXAMINED_EVERY == 0:
                    examine_trace(path)
            read += 1
        except LayoutDoctorError as error:
            refused += bool(str(error))
        except Exception as error:
            raise AssertionError(f"input {number} ({name}) escaped as {type(error).__name__}: {error}") from error
    return read, refused


@pytest.mark.parametrize("seed", seeds(), ids=lambda path: path.name)
def test_a_seed_is_read_or_refused_for_what_it_is(seed: Path) -> None:
    if seed.name in ("diagnosis.json", "notebook.json"):
        with pytest.raises(LayoutDoctorError, match=r"cannot (examine|read)"):
            read_trace(seed)
    else:
        (trial,) = examine_trace(seed).trials
        assert trial.graphs if seed.suffix == ".log" and trial.kernels is None else trial.kernels.count > 0


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    read, refused = read_all(range(2_000), tmp_path)

    assert read + refused == 2_000  # none was refused without a word
    assert min(read, refused) > 200  # both happen often, so neither is all there is to see


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_damaged_files_are_read_or_refused_and_leave_nothing_behind(tmp_path: Path) -> None:
    warm, count = 10_000, 100_000
    read_all(range(warm), tmp_path)
    before = resident_bytes()

    read, refused = read_all(range(warm, count), tmp_path)

    assert read + refused == count - warm
    assert resident_bytes() - before < MOST_GROWTH_BYTES
