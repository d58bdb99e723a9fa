"""Fresh processes with children that only talk: what their turns make of a choice, and what each way to end costs."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_graph,
    a_measurement,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    recordings_of,
)
from recorded_builders import Recorder

from layoutdoctor.errors import LayoutDoctorError, SubjectError
from layoutdoctor.examination.kernels.host import iteration_of, operation_tree
from layoutdoctor.isolation import fresh, processes, starts, timed_process
from layoutdoctor.isolation.fresh import timed, verified, wants_timing
from layoutdoctor.isolation.load import Reading
from layoutdoctor.isolation.messages import Kept, Request, TrialMemo
from layoutdoctor.isolation.starts import time_in_fresh_processes
from layoutdoctor.isolation.timed_process import TimedProcess, started
from layoutdoctor.recording.recording import Iteration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Comparison, FreshProcesses
    from layoutdoctor.recording.recording import Recording

# A child that takes its turns: CALL says what a call of a configuration takes, KEPT the same where memory is kept,
# FAULTS its page faults.
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
KEPT = {}
"""
TAKES_TURNS = """
channel.send(Ready(call_seconds=CALL[name]))
while calls := take():
    if calls == KEEP_MEMORY:
        CALL.update(KEPT)
        FAULTS = dict.fromkeys(FAULTS, 0.0)
        calls = 0
    channel.send(Turned(seconds=(CALL[name],) * calls, page_faults_per_call=FAULTS.get(name), cpu_seconds=1.0))
"""
TIMED = [a_configuration(name) for name in ("inductor", "one", "two")]


def of_rounds(seconds: dict[str, float]) -> tuple[tuple[Recording, ...], Any, Comparison | None]:
    """Recordings of TIMED with what rounds showed, if they were, as ``time_in_fresh_processes`` wants them."""
    trials = [
        a_trial(one.name, measurement=a_measurement(seconds[one.name]) if seconds else None, configuration=one)
        for one in TIMED
    ]
    ratios = [a_ratio(name, seconds["inductor"] / each) for name, each in seconds.items() if name != "inductor"]
    comparison = a_comparison(*ratios, own_processes=True) if seconds else None
    return recordings_of(a_diagnosis(*trials, comparison=comparison)), lambda step: None, comparison


def request_with(**asked: Any) -> Request:
    return Request(target="m.py", **asked)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, FreshProcesses]]:
    def run_children(
        code: str, known: dict[str, float] | None = None, *, is_quick: bool = False, **constants: float
    ) -> dict[str, FreshProcesses]:
        monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + code)
        for name, value in constants.items():
            monkeypatch.setattr(starts, name, value)
        return time_in_fresh_processes(request_with(is_quick=is_quick), *of_rounds(known or {})).seen

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
    assert run(scattering + TAKES_TURNS, is_quick=True)["one"].starts == 3


def test_starts_in_which_the_machine_is_slower_for_all_are_left_out(run: Any, tmp_path: Path) -> None:
    counted = f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'x').close()\n"
    number = f"len(os.listdir({str(tmp_path)!r}))"  # of this process among all
    slower = f"if {number} in (1, 2, 3, 7, 8, 9): CALL.update(inductor=0.03, one=0.012, two=0.05)\n"
    seen = run(counted + slower + TAKES_TURNS, _LONGEST_SECONDS=0.0)["one"]

    assert (seen.starts, seen.slow_starts) == (3, 2)
    assert seen.start_ratios == pytest.approx((2.0, 2.0, 2.0))

    scattering = f'CALL["one"] *= 1 + 0.1 * (({number} - 1) // 3 % 3)\n'
    for file in tmp_path.iterdir():
        file.unlink()
    seen = run(counted + slower + scattering + TAKES_TURNS, _LONGEST_SECONDS=0.0)["one"]
    assert (seen.starts, seen.slow_starts) == (5, 2)  # as many as without them

    alone = run('CALL["one"] *= 1.0 + 0.2 * (os.getpid() % 2)\n' + TAKES_TURNS)["one"]
    assert alone.slow_starts == 0  # its own luck

    for file in tmp_path.iterdir():
        file.unlink()
    unlucky = f"{slower}if CALL['one'] == 0.012: FAULTS.update(inductor=90_000.0, one=90_000.0)\n"
    of_all = run(counted + unlucky + TAKES_TURNS, _LONGEST_SECONDS=0.0)["one"]
    assert of_all.slow_starts == 0  # all of them map pages anew: their luck, not the machine
    assert max(of_all.start_ratios) == pytest.approx(2.5)


def test_a_start_goes_on_until_the_machine_is_as_fast_as_before(run: Any) -> None:
    slower_at_first = """
channel.send(Ready(call_seconds=CALL[name]))
turns = 0
while calls := take():
    turns += 1
    seconds = CALL[name] * ({"inductor": 1.5}.get(name, 1.2) if turns <= SLOW else 1.0)
    channel.send(Turned(seconds=(seconds,) * calls))
"""
    for slow in (6, 30):
        seen = run(f"SLOW = {slow}\n{slower_at_first}", known={"inductor": 0.02, "one": 0.01, "two": 0.04})["one"]
        assert (seen.starts, seen.slow_starts) == (3, 0)
        assert seen.start_ratios == pytest.approx((2.0, 2.0, 2.0))


LUCK = """
from recorded_builders import Recorder
from layoutdoctor.recording.recording import Iteration
CALL["inductor"] = 0.02 if LUCKY else 0.03
def iteration():
    recorder = Recorder()
    with recorder.operation("aten::add"):
        recorder.now += int(CALL[name] * 1e9)
    return Iteration(events=recorder.trace(), device="cpu")
channel.send(Ready(call_seconds=CALL[name]))
while word := stream.read(LENGTH_BYTES):
    calls = int.from_bytes(word, "big")
    turned = Turned(seconds=(CALL[name],) * calls, page_faults_per_call=CALL[name] * 1e4)
    channel.send(turned if calls else Profiled(iterations=(iteration(),)))
"""


def test_where_the_process_of_the_rounds_was_another_case_a_usual_start_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD.replace("os, sys", "os, sys\nLUCKY = False") + LUCK)
    recordings, tell, rounds = of_rounds({"inductor": 0.02, "one": 0.01, "two": 0.04})
    before = (profiled("aten::add"),)
    recordings = tuple(msgspec.structs.replace(one, iterations=before) for one in recordings)
    found = time_in_fresh_processes(request_with(), recordings, tell, rounds)

    assert found.seen["one"].start_ratios == pytest.approx((3.0,) * 5)  # no three starts suffice against the rounds
    measurement = found.instead["inductor"].trial.measurement
    assert measurement is not None
    assert (measurement.median_seconds, measurement.usual_seconds, measurement.usual_page_faults) == (0.02, 0.03, 300.0)
    (iteration,) = found.instead["inductor"].iterations
    assert operation_tree(iteration_of(iteration.events))[0].operation.seconds == pytest.approx(0.03)

    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD.replace("os, sys", "os, sys\nLUCKY = True") + LUCK)
    found = time_in_fresh_processes(request_with(), recordings, tell, rounds)
    assert found.seen["one"].start_ratios == pytest.approx((2.0,) * 3)
    assert found.instead == {}


def test_starts_for_which_there_is_no_time_tell_nothing(run: Any) -> None:
    with pytest.raises(LayoutDoctorError, match=r"^one start takes .*, and 3 are needed within 1.00 us$"):
        run(TAKES_TURNS, LIMIT_SECONDS=1e-6)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os._exit(3)", "inductor: the process ended with exit status 3, as os._exit() does,"),
        ('os.kill(os.getpid(), 11) if name == "two" else None' + TAKES_TURNS, "two: the process died of signal 11"),
        ('channel.send(Refused(kind="SubjectError", message="one: no such thing"))', "one: no such thing"),
        ("time.sleep(60)", "inductor: it took longer than 0.2 s"),
        ("channel.send(Turned(seconds=()))", "inductor: the process said what was not asked for"),
        ("channel.send(Ready(call_seconds=0.01)); take(); os._exit(4)", "inductor: the process ended with exit status"),
        ('os.write(channel._descriptor, b"\\xff" * 9)', "the process sent what is no message"),
    ],
)
def test_a_process_that_does_not_take_its_turns_costs_the_verification(
    run: Any, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.2 if "sleep" in code else 30.0
    monkeypatch.setattr(starts, "started", partial(started, limit_seconds=limit))
    with pytest.raises(LayoutDoctorError) as raised:
        run(code)

    assert message in str(raised.value)


def test_a_start_that_fails_costs_none_of_those_before_it(run: Any, tmp_path: Path) -> None:
    counted = f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'x').close()\n"
    count = f"len(os.listdir({str(tmp_path)!r}))"  # of processes so far, three to a start
    fails = f'CALL["one"] *= 1 + 0.1 * (({count} - 1) // 3 % 3)\nif {count} > 9: os._exit(3)\n'

    assert run(counted + fails + TAKES_TURNS)["one"].starts == 3


def recordings(**changes: Any) -> tuple[Recording, ...]:
    fields = {
        "comparison": a_comparison(a_ratio("one", 2.0), fastest=("one",), own_processes=True),
        "recommendation": a_recommendation("one", speedup=a_speedup(2.0), reason="in one process"),
    }
    return recordings_of(a_diagnosis(a_trial(), a_trial("one"), **{**fields, **changes}))


def test_a_timed_diagnosis_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + TAKES_TURNS)
    stages: list[str] = []
    judged = verified(recordings(), request_with(), lambda step: stages.append(step.stage), {"one": "lines"})
    advice = judged[1].head.recommendation

    assert judged[0].head is judged[1].head
    assert advice is not None
    assert (advice.configuration, advice.verified, advice.how) == ("one", True, "lines")
    assert stages[0] == "fresh processes, start 1: compiling"
    assert stages[1].startswith("fresh processes, start 1: round 1 of ")
    assert stages[-2].startswith("fresh processes, start 3: round ")
    assert stages[-1] == "fresh processes, start 3: memory kept"


@pytest.mark.parametrize("own_processes", [True, False])
def test_starts_are_held_against_rounds_of_processes_like_theirs(
    own_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = mock.Mock(side_effect=SubjectError("enough"))
    monkeypatch.setattr(fresh, "time_in_fresh_processes", asked)
    comparison = a_comparison(a_ratio("one", 2.0), fastest=("one",), own_processes=own_processes)
    verified(recordings(comparison=comparison), request_with(), print, {})

    assert [recording.name for recording in asked.call_args.args[1]] == ["inductor", "one"]
    assert asked.call_args.args[3] == (comparison if own_processes else None)


def test_why_it_is_not_verified_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + "os._exit(3)")
    advice = verified(recordings(), request_with(), print, {})[0].head.recommendation

    assert advice is not None
    assert (advice.configuration, advice.verified) == ("one", False)
    assert str(advice.reason).startswith("fresh processes could not time it: inductor: the process ended with exit")


def test_a_small_budget_is_for_the_rounds_alone() -> None:
    advice = verified(recordings(), request_with(budget_seconds=9.0), print, {})[0].head.recommendation

    assert advice is not None
    assert (advice.configuration, advice.verified) == ("one", False)
    assert advice.reason == "a budget of 9.00 s has no time for further starts of fresh processes"


def test_what_recommends_nothing_needs_no_verification() -> None:
    slower = a_comparison(a_ratio("one", 0.8))
    for changes in ({"recommendation": None}, {"comparison": None}, {"comparison": slower}):
        given = recordings(**changes)

        assert verified(given, request_with(), print, {}) == given


KEEPS = 'KEPT = {"inductor": 0.016, "one": 0.008}\n'
DIES_OF_IT = TAKES_TURNS.replace("CALL.update(KEPT)", "os._exit(3)")
# For the first 12 of its rounds, which are more than those that count afterwards.
SLOWER_AT_FIRST = f"turns = 0{TAKES_TURNS}".replace("take():", "take():\n    turns += 1").replace(
    "(CALL[name],)", "(CALL[name] * (8 if turns <= 12 else 1),)"
)


def kept_memory(median: float, turns: str = TAKES_TURNS, **measured: Any) -> Any:
    """What a diagnosis says of memory that is kept, in which the rounds have said something of one configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_CHILD_CODE", CHILD + KEEPS + turns)
        advice = a_recommendation("one", speedup=a_speedup(median)) if median > 1 else a_recommendation(None)
        comparison = a_comparison(a_ratio("one", median), fastest=("one",), own_processes=True)
        trials = [a_trial(measurement=a_measurement(0.02, **measured)), a_trial("one")]
        given = recordings_of(a_diagnosis(*trials, comparison=comparison, recommendation=advice))
        advice = verified(given, request_with(), lambda step: None, {})[0].head.recommendation
    assert advice is not None
    assert advice.verified == (median > 1)
    return advice.kept_memory


def test_starts_show_what_keeping_memory_makes_of_the_answer() -> None:
    seen = kept_memory(2.0)

    assert (seen.baseline_ratio, seen.speedup.median) == (pytest.approx(1.25), pytest.approx(2.0))
    assert seen.speedup.low <= seen.speedup.median <= seen.speedup.high
    slow = kept_memory(2.0, SLOWER_AT_FIRST)
    assert (slow.baseline_ratio, slow.speedup.median) == (pytest.approx(1.25), pytest.approx(2.0))
    assert kept_memory(2.0, DIES_OF_IT) is None
    assert kept_memory(2.0, TAKES_TURNS.replace("0.0)", "300.0)")) is None  # another allocator, which keeps none
    assert kept_memory(2.0, TAKES_TURNS.replace("FAULTS.get(name)", "5.0")) is None


def test_memory_that_a_few_starts_map_anew_is_luck_that_keeping_it_takes_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'x').close()\n"
    lucky = f"if len(os.listdir({str(tmp_path)!r})) > 6: CALL['one'], FAULTS['one'] = 0.008, 0.0\n"
    luck = f"{counted}FAULTS.update(inductor=0.0, two=0.0)\nKEPT = {{'one': 0.008}}\n{lucky}"
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + luck + TAKES_TURNS)
    found = time_in_fresh_processes(request_with(), *of_rounds({}))

    assert found.seen["one"].start_ratios == pytest.approx((2.0, 2.0, 2.5, 2.5, 2.5))
    assert list(found.kept) == ["one"]
    assert found.kept["one"].baseline_ratio == 1.0
    speedup = found.kept["one"].speedup
    assert speedup is not None
    assert (speedup.low, speedup.high) == pytest.approx((2.5, 2.5))


def test_where_nothing_is_faster_the_one_process_of_the_rounds_shows_what_keeping_memory_makes_of_the_default() -> None:
    seen = kept_memory(0.8, page_faults_per_call=2500.0, memory_seconds=0.004)

    assert (seen.baseline_ratio, seen.speedup) == (pytest.approx(1.25), None)
    assert kept_memory(0.8, page_faults_per_call=2500.0, memory_seconds=0.0009) is None
    assert kept_memory(0.8, page_faults_per_call=2500.0) is None


def kept(*names: str, **changes: Any) -> Kept:
    trials = [a_trial(name, measurement=None) for name in names]
    made = recordings_of(a_diagnosis(*trials, comparison=None, recommendation=None, **changes))
    return Kept(recordings=made, memos={name: TrialMemo(compile_seconds=10.0, how=f"use {name}") for name in names})


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs beside these tests is no part of them."""
    monkeypatch.setattr(fresh, "read_load", lambda: Reading(time.perf_counter(), 0.0, 0.0, 0))


def test_all_that_ran_is_timed_in_turns_each_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processes, "_CHILD_CODE", CHILD + KEEPS + TAKES_TURNS.replace("FAULTS.get(name)", "FAULTS.get(name, 0.0)")
    )
    given = kept("inductor", "one", "two")
    assert wants_timing(given)
    made = timed(given, request_with(budget_seconds=30.0), lambda step: None)
    comparison, advice = made[0].head.comparison, made[0].head.recommendation

    assert comparison is not None
    assert comparison.own_processes
    assert comparison.load is not None
    assert {ratio.name: ratio.median for ratio in comparison.ratios} == pytest.approx({"one": 2.0, "two": 0.5})
    assert advice is not None
    assert (advice.configuration, advice.how, advice.reason) == ("one", "use one", "it was started once only")
    measurement = made[1].trial.measurement
    assert measurement is not None
    assert (measurement.median_seconds, measurement.page_faults_per_call) == (0.01, 2600.0)
    assert measurement.memory_seconds == pytest.approx(0.002)
    assert [one.trial.measurement is not None and one.trial.measurement.memory_seconds for one in made[::2]] == [
        pytest.approx(0.004),
        0.0,  # nothing is asked about it, but it might have led
    ]

    again = msgspec.structs.replace(given, recordings=made)
    assert wants_timing(again)
    more = timed(again, request_with(budget_seconds=0.01), lambda step: None, comparison)
    assert more[1].trial.measurement is not None
    assert len(more[1].trial.measurement.round_seconds) > len(measurement.round_seconds)


TAKES_TURNS_AND_PROFILES = """
from recorded_builders import Recorder
from layoutdoctor.recording.recording import Iteration
def iteration():
    recorder = Recorder()
    for operation in OPERATIONS:
        with recorder.operation(operation):
            recorder.now += 7_000
    return Iteration(events=recorder.trace(), device="cpu")
channel.send(Ready(call_seconds=CALL[name]))
while word := stream.read(LENGTH_BYTES):
    calls = int.from_bytes(word, "big")
    turned = Turned(seconds=(CALL[name],) * calls, cpu_seconds=1.0)
    channel.send(turned if calls else Profiled(iterations=(iteration(),)))
"""


def profiled(*operations: str) -> Iteration:
    recorder = Recorder()
    for operation in operations:
        with recorder.operation(operation):
            recorder.now += 5_000
    return Iteration(events=recorder.trace(), device="cpu")


@pytest.mark.parametrize(
    ("ran", "microseconds"),
    [
        (["layoutdoctor::a1b2::cpp_fused_relu_0"], 7),
        (["layoutdoctor::a1b2::cpp_fused_relu_0", "aten::add"], 5),  # not what was recorded
        ([], 5),
    ],
)
def test_what_is_explained_is_profiled_where_it_was_timed(
    ran: list[str], microseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", f"{CHILD}OPERATIONS = {ran}\n{TAKES_TURNS_AND_PROFILES}")
    given = kept("inductor", "one", "two")
    graphs = (a_graph("graph 0", code_fingerprint="a1b2", kernel_names=("cpp_fused_relu_0",)),)
    before = (profiled("layoutdoctor::graph 0::cpp_fused_relu_0"),)
    recordings = tuple(
        msgspec.structs.replace(one, iterations=before, trial=msgspec.structs.replace(one.trial, graphs=graphs))
        for one in given.recordings
    )
    given = msgspec.structs.replace(given, recordings=recordings)
    stages: list[str] = []
    made = timed(given, request_with(budget_seconds=1.0), lambda it: stages.append(it.stage))

    assert [stage for stage in stages if "profiling" in stage] == ["inductor: profiling", "one: profiling"]
    (iteration,) = made[1].iterations
    (operation,) = operation_tree(iteration_of(iteration.events))
    assert (operation.name, round(operation.seconds() * 1e6)) == (
        "layoutdoctor::graph 0::cpp_fused_relu_0",
        microseconds,
    )
    assert made[2].iterations == before


@pytest.mark.parametrize(
    ("slow", "slower", "disturbed", "microseconds", "call"),
    [
        (3, 2, 20, 7, 8e-6),
        (3, 2, 9, 7, 8e-6),  # its kernels fit into a call, but calls beside them take longer
        (10**6, 2, 20, 5, 8e-6),
        (3, 1, 20, 5, 8e-6),  # calls take what they took: what the profiler itself costs
    ],
)
def test_what_is_profiled_in_the_slower_state_of_the_machine_is_profiled_again(
    slow: int,
    slower: int,
    disturbed: int,
    microseconds: int,
    call: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = f"""
CALL.update(inductor=8e-6, one=4e-6)
OPERATIONS, SLOW, SLOWER, profiles = ["aten::add"], {slow}, {slower}, []
def seconds():
    profiles.append(name)
    if len(profiles) == 1:
        CALL[name] *= SLOWER
    if len(profiles) == SLOW:
        CALL[name] /= SLOWER
    return {disturbed}_000 if len(profiles) < SLOW else 7_000
"""
    turns = TAKES_TURNS_AND_PROFILES.replace("+= 7_000", "+= seconds()")
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + code + turns)
    monkeypatch.setattr(starts, "_PROFILING_SECONDS", 0.5)
    given = kept("inductor", "one")
    recordings = tuple(msgspec.structs.replace(one, iterations=(profiled("aten::add"),)) for one in given.recordings)
    given = msgspec.structs.replace(given, recordings=recordings)
    made = timed(given, request_with(budget_seconds=1.0), lambda it: None)[0]
    (operation,) = operation_tree(iteration_of(made.iterations[0].events))

    assert round(operation.seconds() * 1e6) == microseconds
    assert made.trial.measurement is not None
    assert made.trial.measurement.profiled_call_seconds == pytest.approx(call, rel=0.2)


def test_a_configuration_whose_process_fails_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = 'os._exit(3) if name == "one" else None\n'
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + dies + TAKES_TURNS)
    made = timed(kept("inductor", "one", "two"), request_with(budget_seconds=30.0), lambda step: None)
    failure = made[1].trial.failure

    assert failure is not None
    assert failure.kind == "measure"
    assert failure.message == "the process ended with exit status 3, as os._exit() does, while it was timed"
    assert [recording.trial.status for recording in made] == ["ok", "crashed", "ok"]
    assert made[2].trial.measurement is not None

    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + "os._exit(3)")
    with pytest.raises(SubjectError, match=r"no configuration can be timed in a process of its own"):
        timed(kept("inductor", "one"), request_with(), lambda step: None)


def test_no_more_processes_are_started_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + TAKES_TURNS)
    monkeypatch.setattr(timed_process, "available_bytes", lambda: 10**6)
    monkeypatch.setattr(timed_process, "core_count", lambda: 1)
    with pytest.raises(
        SubjectError, match=r"3 processes of up to .* each do not fit into the memory, of which 977 KiB"
    ):
        timed(kept("inductor", "one", "two"), request_with(), lambda step: None)


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (10**9, "start start start ready start ready ready ready"),  # two cores: a third gets ready beside them
        (150, "start start start ready ready ready start ready"),  # one more fits, so long as no other gets ready
    ],
)
def test_fewer_get_ready_at_a_time_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: str
) -> None:
    monkeypatch.setattr(processes, "_CHILD_CODE", CHILD + TAKES_TURNS)
    monkeypatch.setattr(timed_process, "available_bytes", lambda: available)
    monkeypatch.setattr(timed_process, "peak_resident_bytes", lambda pid: 100)
    monkeypatch.setattr(timed_process, "core_count", lambda: 2)
    seen = []

    class Noted(TimedProcess):
        def __init__(self, *arguments: Any) -> None:
            seen.append("start")
            super().__init__(*arguments)

        def wait_until_ready(self, limit_seconds: float = 60.0) -> None:
            super().wait_until_ready(limit_seconds)
            seen.append("ready")

    monkeypatch.setattr(timed_process, "TimedProcess", Noted)
    with started(request_with(), [*TIMED, TIMED[0]]):
        assert " ".join(seen) == expected


def test_what_is_on_a_gpu_or_was_lowered_for_one_is_not_timed_here() -> None:
    for changes in ({"device": "cuda"}, {"target": "cuda:90"}):
        assert not wants_timing(kept("inductor", subject=a_subject(**changes)))
    assert not wants_timing(Kept())
