"""The variables that a process is given that is to be timed beside other programs."""

from __future__ import annotations

import pytest

from layoutdoctor.workers.settling import short_waits


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_wait_briefly_beside_other_programs_unless_the_user_has_chosen_how_they_wait(chosen: str) -> None:
    assert short_waits({"PATH": "/bin"}, 0.9) == {"GOMP_SPINCOUNT": "10000"}
    assert short_waits({chosen: "1"}, 0.9) == {}


@pytest.mark.parametrize("cores", [None, 0.0, 0.3])
def test_on_a_quiet_machine_threads_wait_as_in_the_users_own_process(cores: float | None) -> None:
    assert short_waits({"PATH": "/bin"}, cores) == {}
