"""Fresh processes with children that only talk: what their turns make of a choice, and what each way to end costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_trial,
    recordings_of,
)

from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.isolation import fresh, processes
from layoutdoctor.isolation.fresh import time_in_fresh_processes, verified
from layoutdoctor.isolation.messages import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import FreshProcesses
    from layoutdoctor.recording.recording import Recording

# A child that takes its turns: CALL says what a call of a configuration takes, FAULTS its page faults.
CHILD = """
import os, sys
sys.path[:] = sys.argv[5:]
import msgspec, time
from layoutdoctor.isolation.messages import *
from layoutdoctor.run.worker import Channel
stream, channel = os.fdopen(int(sys.argv[1]), "rb"), Channel(int(sys.argv[2]), TurnBoard(int(sys.argv[4])), [])
take = lambda: int.from_bytes(stream.read(LENGTH_BYTES), "big")
request = msgspec.msgpack.decode(stream.read(take()), type=Request)
name = request.timed.name
CALL, FAULTS = {"inductor": 0.02, "one": 0.01, "two": 0.04}, {"inductor": 450.0, "one": 2600.0}
"""
TAKES_TURNS = """
channel.send(Ready(call_seconds=CALL[name]))
while calls := take():
    channel.send(Turned(seconds=(CALL[name],) * calls, page_faults_per_call=FAULTS.get(name)))
"""
TIMED = [a_configuration(name) for name in ("inductor", "one", "two")]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, FreshProcesses]]:
    def run_children(code: str, **constants: float) -> dict[str, FreshProcesses]:
        monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + code)
        for name, value in constants.items():
            monkeypatch.setattr(fresh, name, value)
        return time_in_fresh_processes(Request(target="m.py"), TIMED)

    return run_children


def test_every_configuration_is_compared_with_the_baseline_over_three_starts(run: Any) -> None:
    seen = run(TAKES_TURNS)

    assert list(seen) == ["one", "two"]
    assert (seen["one"].starts, seen["one"].start_ratios) == (3, pytest.approx((2.0, 2.0, 2.0)))
    assert (seen["one"].low, seen["one"].median, seen["one"].high) == pytest.approx((2.0, 2.0, 2.0))
    assert seen["two"].median == pytest.approx(0.5)
    assert (seen["one"].page_faults_per_call, seen["one"].baseline_page_faults_per_call) == (2600.0, 450.0)
    assert seen["two"].page_faults_per_call is None


def test_starts_that_scatter_are_followed_by_more(run: Any) -> None:
    scattering = 'CALL["one"] *= 1 + int.from_bytes(os.urandom(1), "big") / 100\n'

    assert run(scattering + TAKES_TURNS, MOST_STARTS=4)["one"].starts == 4


def test_starts_for_which_there_is_no_time_tell_nothing(run: Any) -> None:
    with pytest.raises(LayoutDoctorError, match=r"^one start takes .*, and 3 are needed within 1.00 us$"):
        run(TAKES_TURNS, LIMIT_SECONDS=1e-6)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os._exit(3)", "inductor: the process ended with exit status 3, as os._exit() does,"),
        ('os.kill(os.getpid(), 11) if name == "two" else None' + TAKES_TURNS, "two: the process died of signal 11"),
        ('channel.send(Refused(kind="SubjectError", message="one: no such thing"))', "one: no such thing"),
        ("time.sleep(60)", "inductor took longer than 200 ms"),
        ("channel.send(Turned(seconds=()))", "inductor: the process said what was not asked for"),
        ("channel.send(Ready(call_seconds=0.01)); take(); os._exit(4)", "inductor: the process ended with exit status"),
        ('os.write(channel._descriptor, b"\\xff" * 9)', "the process sent what is no message"),
    ],
)
def test_a_process_that_does_not_take_its_turns_costs_the_verification(run: Any, code: str, message: str) -> None:
    limit = 0.2 if "sleep" in code else 30.0
    with pytest.raises(LayoutDoctorError) as raised:
        run(code, _FIRST_LIMIT_SECONDS=limit)

    assert message in str(raised.value)


def recordings(**changes: Any) -> tuple[Recording, ...]:
    fields = {
        "comparison": a_comparison(a_ratio("one", 2.0), fastest=("one",)),
        "recommendation": a_recommendation("one", speedup=a_speedup(2.0), reason="in one process"),
    }
    return recordings_of(a_diagnosis(a_trial(), a_trial("one"), **{**fields, **changes}))


def test_a_finished_diagnosis_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + TAKES_TURNS)
    stages: list[str] = []
    judged = verified(recordings(), Request(target="m.py"), lambda step: stages.append(step.stage), peak_bytes=1)
    advice = judged[1].head.recommendation

    assert judged[0].head is judged[1].head
    assert advice is not None
    assert (advice.configuration, advice.verified) == ("one", True)
    assert stages == ["fresh processes: start 1", "fresh processes: start 2", "fresh processes: start 3"]


def test_why_it_is_not_verified_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "available_bytes", lambda: 10**9)
    advice = verified(recordings(), Request(target="m.py"), print, peak_bytes=10**9)[0].head.recommendation

    assert advice is not None
    assert (advice.configuration, advice.verified) == ("one", False)
    assert advice.reason == (
        "fresh processes could not time it: 2 processes may need 1.86 GiB of memory together, and 954 MiB are free"
    )


def test_what_recommends_nothing_needs_no_verification() -> None:
    for changes in ({"recommendation": None}, {"comparison": None}, {"recommendation": a_recommendation(None)}):
        given = recordings(**changes)

        assert verified(given, Request(target="m.py"), print) is given
