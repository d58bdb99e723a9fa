"""
Damaged files of every kind: a reader either reads them or says what is wrong.

An input is made from its number alone (``mutations.mutated``), so a failure names all that is needed to see it again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fuzz.mutations import mutated, seeds

from layoutdoctor import LayoutDoctorError, examine_trace
from layoutdoctor.recording.reading import read_trace

if TYPE_CHECKING:
    from pathlib import Path

IS_SWEEP = "SWEEP" in os.environ
COUNT = 100_000 if IS_SWEEP else 500
EXAMINED_EVERY = 8
"""Reading is most of the work; the analysis behind it sees every eighth input."""


@pytest.mark.parametrize("seed", seeds(), ids=lambda path: path.name)
def test_a_seed_is_read_or_refused_for_what_it_is(seed: Path) -> None:
    if seed.name in ("diagnosis.json", "notebook.json", "nvprof.csv"):
        with pytest.raises(LayoutDoctorError, match=r"cannot (examine|read)"):
            read_trace(seed)
    else:
        (trial,) = examine_trace(seed).trials
        assert trial.graphs if seed.suffix == ".log" and trial.kernels is None else trial.kernels.count > 0


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    read = refused = 0
    for number in range(COUNT):
        name, data = mutated(number)
        path = tmp_path / name
        path.write_bytes(data)
        try:
            read_trace(path)
            if number % EXAMINED_EVERY == 0:
                examine_trace(path)
            read += 1
        except LayoutDoctorError as error:
            refused += bool(str(error))
        except (Exception, pytest.fail.Exception) as error:  # the latter where it took too long
            raise AssertionError(f"input {number} ({name}) escaped as {type(error).__name__}: {error}") from error

    assert read + refused == COUNT  # none was refused without a word
    assert min(read, refused) > COUNT / 10  # both happen often, so neither is all there is to see
