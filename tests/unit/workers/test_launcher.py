"""Processes that answer orders, seen from the one that asks: how their ends are worded, where they are forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from builders import a_configuration, a_subject, an_environment

from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.errors import SubjectError, TransportError, UsageError
from layoutdoctor.examination.advice.applying import ModelCall
from layoutdoctor.workers import launcher as module
from layoutdoctor.workers.launcher import Host, Launcher, LostError, Process
from layoutdoctor.workers.messages import (
    Begin,
    Channel,
    ClosedError,
    Ended,
    Failed,
    Fork,
    Load,
    Loaded,
    Opened,
    Prepared,
    Proposal,
    Ran,
    Ready,
    Refused,
    Request,
    WarmUp,
    channel_pair,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.workers.messages import Answer

LOADED = Loaded(
    subject=a_subject(), environment=an_environment(), parameter_ranks=(1, 4), call=ModelCall("model(x)", {"x": 4})
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

    def process(self, *said: Answer, **given: Any) -> tuple[Process, Channel]:
        """A process that has said something, and the end that it would speak through."""
        ours, other = channel_pair()
        self._channels += [ours, other]
        for answer in said:
            other.send(answer)
        return Process(ours, 1_000_000, **{"limit_seconds": 5.0, **given}), other

    def opening(self, other: Channel, *said: Answer) -> None:
        """Has a process announce one that it forked, which has said something and ended."""
        inner, passed = channel_pair()
        other.send(Opened(pid=1_000_001), passed.fileno())
        passed.close()
        for answer in said:
            inner.send(answer)
        inner.close()

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


def lost(process: Process) -> LostError:
    with pytest.raises(LostError) as caught:
        process.ask(WarmUp(), Ready)
    return caught.value


def test_an_answer_of_another_kind_is_a_crash_a_refusal_or_an_exception_of_the_model(ends: Ends) -> None:
    process, other = ends.process(Ready(call_seconds=2.0), Prepared(key="k"))
    assert process.ask(WarmUp(), Ready) == Ready(call_seconds=2.0)
    assert other.receive(5.0)[0] == WarmUp()
    crashed = lost(process)
    assert (crashed.status, str(crashed)) == ("crashed", "it answered with Prepared")

    process, _ = ends.process(Refused(kind="UsageError", message="cannot do it; do that"))
    with pytest.raises(UsageError, match=r"^cannot do it; do that$"):
        process.ask(WarmUp(), Ready)

    proposal = Proposal(cure=Cure(name="view-as-reshape"))
    raised = Failed(failure=Failure(kind="run", message="RuntimeError: boom"), proposals=(proposal,))
    failed = lost(ends.process(raised)[0])
    assert (failed.status, failed.failure, failed.proposals) == ("failed", raised.failure, (proposal,))


@pytest.mark.parametrize(
    ("returncode", "log", "message", "kept"),
    [
        (None, None, "the process ended", None),  # nobody knows how, and there is no log
        (
            -signal.SIGSEGV,
            f"loading\n{STACK}",
            "the process died of signal 11 (SIGSEGV, segmentation fault); it was at model.py:9, in forward",
            STACK.strip(),  # without what was printed before
        ),
        (
            3,
            "one\n\nlast words \n",
            "the process ended with exit status 3, as after os._exit(); it printed last: last words",
            "one\n\nlast words ",
        ),
        (
            -signal.SIGKILL,
            "\n".join(map(str, range(100))),
            "the process died of signal 9 (SIGKILL, killed, as the system does when memory runs out); it printed last: "
            "99",
            "\n".join(map(str, range(88, 100))),
        ),
    ],
)
def test_the_end_of_a_process_is_worded_with_where_it_was(
    returncode: int | None, log: str | None, message: str, kept: str | None, ends: Ends, tmp_path: Path
) -> None:
    if log is not None:
        (tmp_path / "log").write_text(log, encoding="utf-8")
    process, other = ends.process(returncode=lambda: returncode, log=tmp_path / "log", source="model.py")
    other.close()

    error = lost(process)

    assert (error.status, str(error), error.failure.log) == ("crashed", message, kept)


def test_no_answer_in_time_says_what_the_process_was_doing(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = tmp_path / "log", []

    def kill(pid: int, number: int) -> None:
        asked.append((pid, number))
        log.write_text(STACK.partition("\n\n")[2], encoding="utf-8")

    monkeypatch.setattr(os, "kill", kill)
    error = lost(ends.process(log=log, source="model.py", limit_seconds=1e-3)[0])

    assert asked == [(1_000_000, signal.SIGUSR2)]
    assert (error.status, str(error)) == (
        "timed_out",
        "the process took more than 0.001 s; it was at model.py:9, in forward",
    )


def test_a_forked_process_is_reached_over_its_socket_and_its_parent_knows_how_it_ended(
    ends: Ends, tmp_path: Path
) -> None:
    process, other = ends.process(source="model.py")
    other.send(Ended(pid=7, returncode=0))
    ends.opening(other, Ready(call_seconds=3.0))

    forked = process.fork(Fork(log=str(tmp_path / "log")))

    assert other.receive(5.0)[0] == Fork(log=str(tmp_path / "log"))
    assert (forked.pid, forked.log, forked.source) == (1_000_001, tmp_path / "log", "model.py")
    assert forked.limit_seconds == process.limit_seconds == 5.0
    assert forked.answer(Ready) == Ready(call_seconds=3.0)
    other.send(Ended(pid=8, returncode=0))
    other.send(Ended(pid=1_000_001, returncode=4))
    assert str(lost(forked)) == "the process ended with exit status 4, as after os._exit()"
    other.close()
    assert process._returncode_of(9) is None


# ---------------------------------------------------------------------------------------------- the host
class OfFiles:
    """Stands for the launcher: names files, and notes what is to be forked from it."""

    def __init__(self) -> None:
        self.orders: list[Load] = []

    def file(self, name: str) -> str:
        return f"/run/{name}"

    def fork(self, order: Load) -> Process:
        self.orders.append(order)
        return mock.sentinel.worker  # type: ignore[no-any-return]


REQUEST = Request(target="folder/model.py:Net")


def a_host(process: Process, files: OfFiles | None = None) -> Host:
    return Host(files or OfFiles(), process, REQUEST)  # type: ignore[arg-type]


def test_a_host_that_forks_is_asked_for_a_process_with_a_log_of_its_own(ends: Ends) -> None:
    process, other = ends.process(LOADED)
    ends.opening(other)

    worker = a_host(process).begin(a_configuration())

    assert worker.log == Path("/run/inductor")
    assert other.receive(5.0)[0] == Begin(configuration=a_configuration(), log="/run/inductor")


def test_if_forking_the_host_is_not_safe_workers_are_forked_from_the_launcher_and_load_for_themselves(
    ends: Ends,
) -> None:
    process, _ = ends.process(msgspec.structs.replace(LOADED, forks=False))
    launcher = OfFiles()

    assert a_host(process, launcher).begin(a_configuration(), is_again=True) is mock.sentinel.worker

    begin = Begin(configuration=a_configuration(), is_again=True, log="/run/inductor")
    assert launcher.orders == [Load(request=REQUEST, begin=begin, log="/run/inductor")]


def test_a_model_that_cannot_be_loaded_or_ends_its_process_is_an_error_about_the_model(ends: Ends) -> None:
    process, other = ends.process(source="model.py")
    other.close()
    with pytest.raises(SubjectError, match=r"^cannot load model\.py: the process ended$"):
        a_host(process)

    process, other = ends.process(Refused(kind="UsageError", message="cannot load 'x'"))
    with pytest.raises(UsageError, match="cannot load 'x'"):
        a_host(process)
    with pytest.raises(ClosedError):  # nobody listens to it any more
        other.receive(5.0)


# ---------------------------------------------------------------------------------------------- the launcher
CHILD = f"""
import os, sys
sys.path[:] = sys.argv[3:]
from layoutdoctor.workers.messages import *
import msgspec
channel = Channel(int(sys.argv[1]))
order, _ = channel.receive()
if order.request.target == "die":
    os._exit(3)
else:
    ours, theirs = channel_pair()
    channel.send(Opened(pid=os.getpid()), theirs.fileno())
    theirs.close()
    ours.send(msgspec.msgpack.decode({msgspec.msgpack.encode(LOADED)!r}, type=Loaded))
    ours.send(Ran(may_convolve=order.reference == 'r', notes=(sys.argv[2], order.request.target)))
channel.receive()
"""


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """With a process that answers and has no torch."""
    monkeypatch.setattr(module, "_CODE", CHILD)
    launcher = Launcher()
    yield launcher
    launcher.close()


def test_a_launcher_starts_a_process_that_gets_a_socket_and_a_folder_and_ends_with_it(launcher: Launcher) -> None:
    assert launcher.is_alive
    scout = launcher.load(Request(target="model.py", timeout_seconds=60.0), "r")
    folder = launcher.directory
    with launcher.folder():
        names = [launcher.file(name) for name in ("inductor+flat-conv3d", "../a b", "inductor+flat-conv3d")]

    assert scout.loaded == LOADED
    assert scout.process.answer(Ran) == Ran(may_convolve=True, notes=(str(folder), "model.py"))
    assert (scout.process.source, scout.process.limit_seconds) == ("model.py", 60.0)
    assert [Path(name).name for name in names] == ["2-inductor+flat-conv3d", "3-___a_b", "4-inductor+flat-conv3d"]
    assert Path(names[0]).parents[1] == folder
    scout.process.channel.close()
    launcher.close()
    assert not launcher.is_alive
    assert not folder.exists()


def test_a_launcher_that_ends_is_an_error_that_says_how(launcher: Launcher) -> None:
    with pytest.raises(TransportError) as caught:
        launcher.load(Request(target="die"))

    assert str(caught.value) == (
        "cannot start a process for the diagnosis: the process ended with exit status 3, as after os._exit(); "
        "see what the process printed"
    )


def test_a_system_without_room_for_a_process_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", mock.Mock(side_effect=OSError(11, "Resource temporarily unavailable")))
        with pytest.raises(TransportError, match="Resource temporarily unavailable; free memory or processes"):
            Launcher()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(TransportError, match=r"does not know its own program \(sys.executable is empty\)"):
        Launcher()


ORPHAN = """
import os, time
from layoutdoctor.run.launcher import _at_most
readable, writable = os.pipe()
if os.fork() == 0:
    with _at_most(60):
        os.write(writable, b"x")
        time.sleep(60)
    print("given up", flush=True)
else:
    os.read(readable, 1)
os._exit(0)
"""


def test_preparing_the_compiler_is_given_up_soon_after_the_command_was_killed() -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False, timeout=30)

    assert (ended.stdout, ended.stderr) == ("given up\n", "")
