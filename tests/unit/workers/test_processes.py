"""What a process is given that is to be timed beside other programs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from layoutdoctor.workers import processes
from layoutdoctor.workers.processes import passive_where_busy


@pytest.mark.parametrize(
    ("environment", "busy", "own", "expected"),
    [
        ({}, 0.2, 0.0, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ({}, 0.05, 0.0, {}),
        ({}, 0.2, 0.18, {}),  # which this process does itself
        ({}, None, 0.0, {}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, 0.2, 0.0, {}),  # the user's choice
        ({"GOMP_SPINCOUNT": "1000"}, 0.2, 0.0, {}),
    ],
)
def test_threads_wait_passively_only_where_other_programs_are_busy(
    environment: dict[str, str],
    busy: float | None,
    own: float,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    cores = None if busy is None else busy / 0.2
    fake = SimpleNamespace(sleep=sleep, process_time=lambda: own * clock.now / 0.2)
    monkeypatch.setattr(processes, "time", fake)
    monkeypatch.setattr(processes, "busy_seconds", lambda: None if cores is None else 100.0 + cores * clock.now)

    assert passive_where_busy(environment) == expected


def test_a_command_that_ends_in_a_moment_does_not_change_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(processes, "time", SimpleNamespace(sleep=sleep, process_time=lambda: 0.0))
    monkeypatch.setattr(processes, "busy_seconds", lambda: min(clock.now, 0.25))

    assert passive_where_busy({}) == {}
