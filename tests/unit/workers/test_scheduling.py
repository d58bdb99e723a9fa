"""Which workers compile beside each other, over real channels to processes that are scripts."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest
from builders import a_configuration, a_diagnosis, a_graph, a_trial, recordings_of
from fake_workers import Clock, a_worker

from layoutdoctor.diagnosis.configurations import BY_NAME
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.workers import launcher, turns, worker
from layoutdoctor.workers.launcher import Process
from layoutdoctor.workers.messages import Channel, Compile, Compiled, Failed, Prepared, Request, channel_pair
from layoutdoctor.workers.turns import compile_side_by_side, stopped
from layoutdoctor.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.workers.messages import Answer

HEAD = recordings_of(a_diagnosis(a_trial("inductor")))[0].head
NAMES = list(BY_NAME)


class ScriptedHost:
    """Its processes have said all that they will ever say as soon as they are begun."""

    def __init__(self) -> None:
        self.limit_seconds: float | None = None
        self.begun: list[str] = []
        self.killed: list[int] = []
        self.keys: dict[str, str] = {}
        self.codes: dict[str, str | None] = {}
        self.said: dict[str, list[Answer]] = {}
        self.others: dict[str, Channel] = {}

    def begin(self, configuration: Configuration) -> Process:
        name = configuration.name
        self.begun.append(name)
        ours, other = channel_pair()
        self.others[name] = other
        code = self.codes.get(name, f"code of {name}")
        compiled = Compiled(trial=a_trial(name, kernels=None, measurement=None, equivalence=None), code=code)
        for answer in self.said.get(name, [Prepared(key=self.keys.get(name, name)), compiled]):
            other.send(answer)
        return Process(ours, 1_000_000 + len(self.begun), limit_seconds=self.limit_seconds)

    def orders_of(self, name: str) -> list[Any]:
        found = []
        with contextlib.suppress(TimeoutError, launcher.ClosedError):
            while True:
                found.append(self.others[name].receive(1e-3)[0])
        return found


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHost]:
    host = ScriptedHost()
    monkeypatch.setattr(launcher, "kill_with_all_it_started", host.killed.append)
    monkeypatch.setattr(launcher, "_STACKS_SECONDS", 0.0)
    yield host
    for other in host.others.values():
        other.close()


def workers(host: Any, names: Sequence[str], timeout_seconds: float | None = None) -> list[Worker]:
    request = Request(timeout_seconds=timeout_seconds)
    return [Worker(host, a_configuration(name), request, None) for name in names]


def compiled(
    made: Sequence[Worker],
    earlier: Sequence[Worker] = (),
    most: int | None = None,
    on_done: Callable[[str], object] = lambda name: None,
) -> list[str]:
    """In which order they were done; channels are closed at the end."""
    done: list[str] = []

    def note(running: Sequence[Worker]) -> None:
        for one in made:
            if one not in running and one.name not in done and (one.is_ready or one.trial.status != "ok"):
                done.append(one.name)
                on_done(one.name)

    compile_side_by_side(made, earlier, note, most=most)
    close(made)
    return done


def close(made: Sequence[Worker]) -> None:
    for one in made:
        if one.process is not None:
            one.process.channel.close()


def test_what_matters_most_is_compiled_first_and_the_rest_in_its_order(host: ScriptedHost) -> None:
    first = ["inductor", "inductor-channels-last-freezing", "inductor-freezing", "inductor-channels-last", "eager"]

    done = compiled(workers(host, NAMES), most=1)

    assert host.begun == done == [*first, *(name for name in NAMES if name not in first)]


def test_without_formats_those_that_ask_for_one_are_compiled_last(host: ScriptedHost) -> None:
    names = ("inductor-channels-last-freezing", "inductor-freezing", "eager-channels-last", "inductor")
    made = [Worker(host, BY_NAME[name], Request(), None) for name in names]

    compile_side_by_side(made, (), lambda running: None, most=1, has_formats=False)

    assert host.begun == ["inductor", "inductor-freezing", "inductor-channels-last-freezing", "eager-channels-last"]
    close(made)


def test_no_more_compile_at_once_than_there_are_cores_and_one(
    host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    at_once: list[int] = []

    compiled(workers(host, NAMES[:6]), on_done=lambda name: at_once.append(len(host.begun) - len(at_once)))

    assert max(at_once) == 3
    assert len(at_once) == 6


@pytest.mark.parametrize(("names", "share"), [(["inductor"], 8), (["inductor", "eager"], 4), (NAMES[:9], 1)])
def test_those_that_compile_share_the_cores(
    names: list[str], share: int, host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    compiled(workers(host, names))

    assert host.orders_of("inductor") == [Compile(kernels_at_once=share)]


def test_one_with_the_options_and_formats_of_another_is_not_compiled(host: ScriptedHost) -> None:
    host.keys = {"inductor": "k", "inductor-layout-opt-on": "k"}
    made = workers(host, ["inductor", "inductor-layout-opt-on", "eager"])

    compiled(made, most=1)

    same = made[1]
    assert (same.trial.status, same.trial.same_as, same.is_ready) == ("same_as", "inductor", False)
    assert same.trial.notes == ("the same options and formats are in effect",)
    assert same.process is None
    assert len(host.killed) == 1
    assert host.orders_of("inductor") == [Compile(kernels_at_once=os.cpu_count() or 1)]
    assert host.orders_of("inductor-layout-opt-on") == []


def test_one_with_the_code_of_another_is_the_same_after_compiling(host: ScriptedHost) -> None:
    host.codes = {"inductor": "c", "inductor-layout-opt-off": "c", "eager": None, "eager-channels-last": None}
    made = workers(host, ["inductor", "inductor-layout-opt-off", "eager", "eager-channels-last"])

    compiled(made, most=1)
    later = workers(host, ["inductor-layout-opt-forced"])
    host.codes["inductor-layout-opt-forced"] = "c"
    compiled(later, made)

    assert later[0].trial.same_as == "inductor"
    assert [(one.trial.status, one.trial.same_as) for one in made] == [
        ("ok", None),
        ("same_as", "inductor"),
        ("ok", None),
        ("ok", None),  # not all of its code is known
    ]
    assert made[1].trial.notes == ("the generated code is the same",)
    assert (made[1].is_ready, made[1].is_ok) == (True, False)


def test_nothing_is_the_same_as_what_is_the_same_as_another_or_has_failed(host: ScriptedHost) -> None:
    failed = Failed(failure=Failure(kind="compile", message="RuntimeError: boom"))
    host.said["inductor"] = [Prepared(key="k"), failed]
    names = ["inductor", "inductor-layout-opt-on", "inductor-layout-opt-off", "inductor-channels-last"]
    host.codes = dict.fromkeys(names, "c")
    made = workers(host, names)

    compiled(made, most=1)

    by_name = {one.name: one.trial for one in made}
    assert by_name["inductor"].status == "failed"
    assert by_name["inductor"].failure == failed.failure
    assert [trial.name for trial in by_name.values() if trial.status == "ok"] == ["inductor-channels-last"]
    assert {trial.same_as for trial in by_name.values()} == {None, "inductor-channels-last"}


@pytest.mark.parametrize("which_compiles_last", ["inductor", "inductor-layout-opt-off"])
def test_what_is_the_same_as_a_dropped_one_is_the_same_as_the_kept_one(which_compiles_last: str) -> None:
    kept, dropped = a_worker("inductor"), a_worker("inductor-layout-opt-off", graphs=(a_graph(name="off"),))
    third = a_worker("inductor-channels-last-opt-off", status="same_as", same_as=dropped.name)
    kept.start = dropped.start = None
    last, other = (kept, dropped) if which_compiles_last == "inductor" else (dropped, kept)

    is_dropped = last._yields_to(other, [kept, dropped, third], "the generated code is the same")

    assert is_dropped == (last is dropped)
    assert (kept.trial.status, dropped.trial.same_as, third.trial.same_as) == ("ok", "inductor", "inductor")
    assert third.trial.graphs == dropped.trial.graphs  # its options are those of the dropped one, not of the kept


@pytest.mark.parametrize("names", [("inductor", "eager", "inductor-freezing"), ("eager", "inductor")])
def test_what_runs_the_code_of_eager_mode_is_the_same_as_eager_mode(host: ScriptedHost, names: Any) -> None:
    host.codes = dict.fromkeys(names, "c")
    made = workers(host, names)

    compiled(made, most=1)
    for later in workers(host, ["inductor-layout-opt-off"]):
        host.codes[later.name] = "c"
        compiled([later], made)
        made.append(later)

    assert [one.name for one in made if one.trial.same_as is None] == ["eager"]
    assert {one.trial.same_as for one in made} == {None, "eager"}
    assert all(one.trial.notes == ("the generated code is the same",) for one in made if one.name != "eager")


def test_one_that_takes_too_long_is_given_up_and_the_others_go_on(
    host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.said["inductor"] = [Prepared(key="k")]
    clock = Clock()
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    host.limit_seconds = 60.0
    made = workers(host, ["inductor", "eager"], timeout_seconds=60.0)

    done = compiled(made, on_done=lambda name: setattr(clock, "now", 61.0))

    assert done == ["eager", "inductor"]
    late = made[0].trial
    assert late.failure is not None
    assert (late.status, late.failure.message) == ("timed_out", "the process took more than 60 s")
    assert len(host.killed) == 1


def test_what_is_lowered_ends_its_process_and_what_has_nothing_to_lower_begins_none(host: ScriptedHost) -> None:
    names = ["eager", "inductor", "inductor-freezing"]
    made = [Worker(host, a_configuration(name), Request(lower_for="cuda:90"), None) for name in names]  # type: ignore[arg-type]

    compiled(made)

    assert [one.trial.status for one in made] == ["skipped", "ok", "skipped"]
    assert [one.trial.failure.message.partition(" ")[0] for one in made if one.trial.failure] == ["eager", "freezing"]
    assert (host.begun, len(host.killed)) == (["inductor"], 1)
    recordings = [one.recording(HEAD) for one in made]
    assert [one.was_profiled for one in recordings] == [False, True, False]


def test_if_nothing_can_be_lowered_nobody_waits(host: ScriptedHost) -> None:
    made = Worker(host, a_configuration("eager"), Request(lower_for="cuda:90"), None)  # type: ignore[arg-type]

    assert compiled([made]) == ["eager"]
    assert made.trial.status == "skipped"


def test_the_time_for_which_a_worker_is_stopped_is_not_its_own(
    host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, signals = Clock(), []
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(turns, "time", clock)
    monkeypatch.setattr(turns, "stop_all", lambda pids, goes_on=False: signals.append((tuple(pids), goes_on)))
    limited, unlimited = *workers(host, ["inductor"], 60.0), *workers(host, ["eager"])
    limited.begin()
    unlimited.begin()
    pids = tuple(one.process.pid for one in (limited, unlimited) if one.process is not None)

    def fail() -> None:
        assert signals == [(pids, False)]
        clock.now = 50.0
        raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"), stopped([limited, unlimited]):
        fail()

    assert signals == [(pids, False), (pids, True)]
    assert limited.seconds_left == 60.0
    assert unlimited.seconds_left is None
    close([limited, unlimited])
