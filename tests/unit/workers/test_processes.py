"""The variables that a process is given that is to be timed beside other programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from layoutdoctor.workers.processes import cores_in_use
from layoutdoctor.workers.settling import short_waits


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_wait_briefly_beside_other_programs_unless_the_user_has_chosen_how_they_wait(chosen: str) -> None:
    assert short_waits({"PATH": "/bin"}, lambda: 0.9) == {"GOMP_SPINCOUNT": "10000"}
    assert short_waits({chosen: "1"}, lambda: 0.9) == {}


@pytest.mark.parametrize("cores", [None, 0.0, 0.3])
def test_on_a_quiet_machine_threads_wait_as_in_the_users_own_process(cores: float | None) -> None:
    assert short_waits({"PATH": "/bin"}, lambda: cores) == {}


def test_a_busy_child_of_this_process_counts_as_well() -> None:
    """A loader of data is one: threads that are timed lose their processor to it like to any other program."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.read(1)
            found = [cores_in_use() or 0.0 for _ in range(3)]
        finally:
            busy.kill()
    assert max(found) > 0.5
