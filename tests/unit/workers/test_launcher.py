"""Processes that answer orders, seen from the one that asks: what each way to end one says, and where it is forked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from builders import a_configuration, a_subject, an_environment
from loops import for_each

from layoutdoctor.diagnosis.records import Cure, Failure
from layoutdoctor.errors import LayoutDoctorError, SubjectError, TransportError, UnsupportedTorchError, UsageError
from layoutdoctor.examination.applying import Call
from layoutdoctor.workers import launcher as module
from layoutdoctor.workers.launcher import Host, Launcher, LostError, Process
from layoutdoctor.workers.messages import (
    Begin,
    Channel,
    ClosedError,
    Ended,
    Failed,
    Fork,
    Loaded,
    Opened,
    Prepared,
    Progress,
    Proposal,
    Ready,
    Refused,
    Request,
    Scouted,
    WarmUp,
    channel_pair,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.workers.messages import Answer

LOADED = Loaded(
    subject=a_subject(), environment=an_environment(), parameter_ranks=(1, 4), call=Call("model(x)", {"x": 4})
)
STACK = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f0000000000 (most recent call first):
  File "/x/torch/nn/functional.py", line 3 in linear
  File "/home/me/model.py", line 9 in forward
"""


class Ends:
    """Our ends of processes, and the other end of each."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []

    def process(self, *said: Answer, pid: int = 1_000_000, **given: Any) -> tuple[Process, Channel]:
        """A process that has said something, and the end that it would speak through."""
        ours, theirs = channel_pair()
        other = Channel(theirs)
        self._channels += [ours, other]
        for answer in said:
            other.send(answer)
        return Process(ours, pid, **given), other

    def opening(self, other: Channel, *said: Answer) -> Channel:
        """Has a process announce one that it forked; the end through which that one speaks."""
        inner, passed = channel_pair()
        other.send(Opened(pid=1_000_001), passed.fileno())
        passed.close()
        self._channels.append(inner)
        for answer in said:
            inner.send(answer)
        return inner

    def keep(self, process: Process) -> Process:
        self._channels.append(process.channel)
        return process

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(module, "_STACKS_SECONDS", 0.0)
    monkeypatch.setattr(module, "kill_with_all_it_started", lambda pid: None)
    found = Ends()
    yield found
    found.close()


def lost(run: Callable[[], object]) -> LostError:
    with pytest.raises(LostError) as caught:
        run()
    return caught.value


def test_an_answer_is_what_was_asked_for(ends: Ends) -> None:
    process, other = ends.process(Ready(call_seconds=2.0))

    assert process.ask(WarmUp(), Ready, 5.0) == Ready(call_seconds=2.0)
    assert other.receive(5.0)[0] == WarmUp()


def test_one_of_several_kinds_of_answer_is_taken(ends: Ends) -> None:
    process, _ = ends.process(Progress(stage="a", done=1), Ready(call_seconds=2.0))

    assert [process.answer((Progress, Ready), 5.0) for _ in range(2)] == [
        Progress(stage="a", done=1),
        Ready(call_seconds=2.0),
    ]


def test_another_kind_of_answer_is_a_crash(ends: Ends) -> None:
    process, _ = ends.process(Prepared(key="k"), Prepared(key="k"))

    error = lost(lambda: process.ask(WarmUp(), Ready, 5.0))
    assert (error.status, str(error)) == ("crashed", "it answered with Prepared")
    assert str(lost(process.opened)) == "it answered with Prepared"


def test_an_answer_that_was_peeked_at_is_still_there(ends: Ends) -> None:
    process, _ = ends.process(Scouted(has_convolution=True), Ready(call_seconds=1.0))

    assert process.peek(Scouted) == process.answer(Scouted) == Scouted(has_convolution=True)
    assert process.answer(Ready) == Ready(call_seconds=1.0)


@for_each(
    ("kind", "error"),
    [
        ("UsageError", UsageError),
        ("SubjectError", SubjectError),
        ("UnsupportedTorchError", UnsupportedTorchError),
        ("ErrorOfANewerVersion", LayoutDoctorError),
    ],
)
def test_a_refusal_is_raised_as_the_error_that_it_was(kind: str, error: type[LayoutDoctorError]) -> None:
    ends = Ends()
    process, _ = ends.process(Refused(kind=kind, message="cannot do it; do that"))
    with contextlib.closing(ends), pytest.raises(error, match=r"^cannot do it; do that$") as caught:
        process.ask(WarmUp(), Ready, 5.0)

    assert type(caught.value) is error


def test_what_the_model_raised_comes_with_the_cures_that_may_help(ends: Ends) -> None:
    proposal = Proposal(cure=Cure(name="view-as-reshape"))
    failed = Failed(failure=Failure(kind="run", message="RuntimeError: boom"), proposals=(proposal,))
    process, _ = ends.process(failed)

    error = lost(lambda: process.ask(WarmUp(), Ready, 5.0))

    assert (error.status, error.failure, error.answer) == ("failed", failed.failure, failed)


def test_a_signal_is_named_with_the_line_of_the_users_file_and_the_log(ends: Ends, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"loading\n{STACK}", encoding="utf-8")
    creator, _ = ends.process(Ended(pid=7, returncode=0), Ended(pid=1_000_000, returncode=-signal.SIGSEGV))
    process, other = ends.process(creator=creator, log=log, source="model.py")
    creator._children[1_000_000] = None
    other.close()

    error = lost(lambda: process.ask(WarmUp(), Ready, 5.0))

    assert error.status == "crashed"
    assert error.failure.message == (
        "the process died of signal 11 (SIGSEGV, segmentation fault); it was at model.py:9, in forward"
    )
    assert error.failure.log == STACK.strip()  # without what was printed before


def test_an_exit_of_the_models_own_is_named_with_its_last_words(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n\nlast words \n", encoding="utf-8")
    creator, _ = ends.process(Ended(pid=1_000_000, returncode=3))
    process, other = ends.process(creator=creator, log=tmp_path / "log")
    other.close()

    assert str(lost(lambda: process.answer(Ready))) == (
        "the process ended with exit status 3, as os._exit() does; it printed last: last words"
    )


def test_where_nobody_knows_how_it_ended_it_ended(ends: Ends) -> None:
    creator, its = ends.process()
    its.close()
    process, other = ends.process(creator=creator)
    other.close()
    alone, other = ends.process()
    other.close()

    for one in (process, alone):
        error = lost(lambda one=one: one.answer(Ready))
        assert (str(error), error.failure.log) == ("the process ended", None)


def test_of_a_long_log_the_end_is_kept(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(map(str, range(100))), encoding="utf-8")
    process, _ = ends.process(log=tmp_path / "log")
    missing, _ = ends.process(log=tmp_path / "none")

    assert process.printed(lines=12).splitlines() == [str(number) for number in range(88, 100)]
    assert missing.printed() == ""


def test_no_answer_in_time_says_what_the_process_was_doing(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = tmp_path / "log", []

    def kill(pid: int, number: int) -> None:
        asked.append((pid, number))
        log.write_text(STACK.partition("\n\n")[2], encoding="utf-8")

    monkeypatch.setattr(os, "kill", kill)
    process, _ = ends.process(log=log, source="model.py")

    error = lost(lambda: process.ask(WarmUp(), Ready, 1e-3))

    assert asked == [(1_000_000, signal.SIGUSR2)]
    assert (error.status, str(error)) == ("timed_out", "it took more than 0.001 s; it was at model.py:9, in forward")
    assert error.failure.log == log.read_text(encoding="utf-8").strip()


def test_processes_that_end_meanwhile_are_no_answer_and_are_remembered(ends: Ends) -> None:
    process, _ = ends.process(Ended(pid=5, returncode=-9), Ready(call_seconds=1.0))

    assert process.answer(Ready, 5.0) == Ready(call_seconds=1.0)
    assert process.returncode_of(5) == -9


def test_a_process_that_is_forked_is_reached_over_the_socket_that_came_with_it(ends: Ends, tmp_path: Path) -> None:
    process, other = ends.process(source="model.py")
    ends.opening(other, Ready(call_seconds=3.0)).close()

    forked = ends.keep(process.fork(Fork(log="l"), tmp_path / "log"))

    assert other.receive(5.0)[0] == Fork(log="l")
    assert (forked.pid, forked.log) == (1_000_001, tmp_path / "log")
    assert forked.answer(Ready) == Ready(call_seconds=3.0)
    other.send(Ended(pid=1_000_001, returncode=-signal.SIGKILL))
    assert str(lost(lambda: forked.answer(Ready))) == (
        "the process died of signal 9 (SIGKILL, killed, as the system does when memory runs out)"
    )


def test_a_process_that_was_announced_without_its_socket_is_lost(ends: Ends) -> None:
    process, _ = ends.process(Opened(pid=3))

    assert str(lost(process.opened)) == "it answered with Opened"


def test_an_order_to_a_process_that_is_gone_shows_in_the_answer(ends: Ends) -> None:
    process, other = ends.process()
    other.close()
    process.tell(WarmUp())

    assert lost(lambda: process.answer(Ready)).status == "crashed"


# ---------------------------------------------------------------------------------------------- the host
class OfFiles:
    """Stands for the launcher: names files, and has processes that load a subject for themselves."""

    def __init__(self, *alone: Process) -> None:
        self._alone = list(alone)

    def file(self, name: str) -> str:
        return f"/run/{name}"

    def load_alone(self, request: Request) -> Process:
        assert request == Request(target="folder/model.py:Net")
        return self._alone.pop(0)


def a_host(process: Process, *alone: Process) -> Host:
    return Host(OfFiles(*alone), process, Request(target="folder/model.py:Net"))  # type: ignore[arg-type]


def test_a_host_that_forks_is_asked_for_a_process_with_a_log_of_its_own(ends: Ends) -> None:
    process, other = ends.process(LOADED, source="model.py")
    host = a_host(process)
    ends.opening(other)

    worker = ends.keep(host.begin("worker", a_configuration()))

    assert host.forks
    assert worker.log == Path("/run/inductor")
    assert worker.source == "model.py"
    assert other.receive(5.0)[0] == Begin(role="worker", configuration=a_configuration(), log="/run/inductor")


def test_where_forking_is_not_safe_the_host_works_itself_and_further_ones_load_for_themselves(ends: Ends) -> None:
    no_fork = Loaded(**{name: getattr(LOADED, name) for name in ("subject", "environment", "parameter_ranks", "call")},
                     no_fork="2 more threads run")  # fmt: skip
    process, other = ends.process(no_fork)
    second, others = ends.process(no_fork)
    host = a_host(process, second)

    assert not host.forks
    assert host.begin("reference", path="p") is process
    assert host.begin("worker", a_configuration()) is second
    assert other.receive(5.0)[0] == Begin(role="reference", path="p", log="/run/reference", here=True)
    order = Begin(role="worker", configuration=a_configuration(), log="/run/inductor", here=True)
    assert others.receive(5.0)[0] == order


def test_a_model_that_ends_the_process_that_loads_it_is_an_error_about_the_model(ends: Ends) -> None:
    process, other = ends.process()
    other.close()

    with pytest.raises(SubjectError, match=r"^cannot load model\.py: the process ended$"):
        a_host(process)


def test_a_model_that_cannot_be_loaded_is_the_error_that_it_was(ends: Ends) -> None:
    process, other = ends.process(Refused(kind="UsageError", message="cannot load 'x'"))

    with pytest.raises(UsageError, match="cannot load 'x'"):
        a_host(process)
    with pytest.raises(ClosedError):  # nobody listens to it any more
        other.receive(5.0)


# ---------------------------------------------------------------------------------------------- the launcher
CHILD = """
import os, sys
sys.path[:] = sys.argv[5:]
from layoutdoctor.workers.messages import *
channel = Channel.of_descriptor(int(sys.argv[1]))
order, _ = channel.receive()
if order.request.target == "refuse":
    channel.send(Refused(kind="UsageError", message="cannot"))
elif order.request.target == "die":
    os._exit(3)
else:
    ours, theirs = channel_pair()
    channel.send(Opened(pid=os.getpid()), theirs.fileno())
    theirs.close()
    ours.send(Scouted(has_convolution=order.scouts, notes=tuple(sys.argv[2:5])))
channel.receive()
"""


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """With a process that speaks the language and has no torch."""
    monkeypatch.setattr(module, "_CODE", CHILD)
    with Launcher() as launcher:
        yield launcher


def test_a_launcher_starts_a_process_that_gets_a_socket_and_a_folder_and_ends_with_it(launcher: Launcher) -> None:
    assert launcher.is_alive
    scout = launcher.scout(Request(target="model.py"))
    seen = scout.answer(Scouted, 60.0)
    folder = launcher.directory
    (folder / "file").touch()
    scout.channel.close()

    assert seen.has_convolution
    assert seen.notes == (str(os.getpid()), str(folder), "fork")
    launcher.close()
    assert not launcher.is_alive
    assert not folder.exists()


def test_files_of_a_run_have_safe_names_of_their_own(launcher: Launcher) -> None:
    names = [Path(launcher.file(name)).name for name in ("inductor+flat-conv3d", "../a b", "inductor+flat-conv3d")]

    assert names == ["1-inductor+flat-conv3d", "2-___a_b", "3-inductor+flat-conv3d"]


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("refuse", UsageError, "^cannot$"),
        (
            "die",
            TransportError,
            "the diagnosis: the process ended with exit status 3, as os._exit.. does; see what it printed$",
        ),
    ],
)
def test_a_launcher_that_cannot_start_says_why(
    launcher: Launcher, target: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        launcher.scout(Request(target=target))


def test_a_system_without_room_for_a_process_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", mock.Mock(side_effect=OSError(11, "Resource temporarily unavailable")))
        with pytest.raises(TransportError, match="Resource temporarily unavailable; free memory or processes"):
            Launcher()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(TransportError, match=r"does not know its own program \(sys.executable is empty\)"):
        Launcher()
