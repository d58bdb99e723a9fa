"""The supervisor with children that only talk: what each way to end costs, and what is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

import msgspec
import pytest
from builders import a_comparison, a_kept, a_ratio, a_recommendation, a_trial

from layoutdoctor.diagnosis.records import Configuration, Diagnosis, Failure
from layoutdoctor.errors import LayoutDoctorError, SubjectError, UnknownConfigurationError, UsageError
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.isolation import processes
from layoutdoctor.isolation import supervisor as supervisor_module
from layoutdoctor.isolation.journal import temporary_journal
from layoutdoctor.isolation.messages import Request
from layoutdoctor.isolation.processes import scratch_prefix
from layoutdoctor.isolation.supervisor import Watch, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.isolation.journal import Journal
    from layoutdoctor.isolation.messages import Kept, Progress

# What every child begins with: the request, and functions that say what the real worker would.
PRELUDE = """
import os, sys
sys.path[:] = sys.argv[5:]
import msgspec, signal, subprocess, time, faulthandler
from layoutdoctor.isolation.messages import *
from layoutdoctor.diagnosis.records import *
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.run.worker import Channel
DEVICE = "cuda"  # timed where they run
faulthandler.enable()
faulthandler.register(signal.SIGUSR2, all_threads=True)
request = msgspec.msgpack.decode(os.fdopen(int(sys.argv[1]), "rb").read()[LENGTH_BYTES:], type=Request)
names = [configuration.name for configuration in request.configurations]
board = TurnBoard(int(sys.argv[4]))
channel = Channel(int(sys.argv[2]), board, names)

def recordings(done):
    trials = []
    for configuration in request.configurations:
        if configuration.name in request.lost:
            lost = request.lost[configuration.name]
            trials.append(Trial(configuration=configuration, status=lost.status, failure=lost.failure))
        elif configuration.name in done:
            trials.append(Trial(configuration=configuration, status="ok"))
    head = Head(layoutdoctor_version="1", created_at="now", environment=Environment(torch="2"),
                subject=Subject(name="m.py", mode="inference", device=DEVICE, inputs=()),
                configurations=tuple(trial.name for trial in trials))
    return tuple(Recording(head=head, trial=trial, source="live") for trial in trials)

channel.began(None, "load")
done = [kept.name for kept in request.kept.recordings if kept.trial.status == "ok"]
os.write(1, f"does {[name for name in names if name not in done and name not in request.lost]}\\n".encode())

def run_all(run):
    for name in names:
        if name not in done and name not in request.lost:
            channel.began(name, "prepare")
            run(name)
            done.append(name)
            channel.keep(next(r for r in recordings(done) if r.name == name), TrialMemo(key=name))

def finish():
    channel.send(Finished(recordings=recordings(done)))
    os._exit(0)
"""


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = temporary_journal()
    yield made
    made.close(is_needed=False)
    assert not made.directory.exists()


class Seen:
    """What a watch was told."""

    def __init__(self) -> None:
        self.steps: list[Progress] = []
        self.records: list[Diagnosis] = []
        self.output = b""
        self.warnings: list[str] = []
        self.watch = Watch(self.steps.append, self.records.append, self._print, self.warnings.append)

    def _print(self, data: bytes) -> None:
        self.output += data


@pytest.fixture
def run(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Diagnosis, Seen]]:
    def run_child(code: str, *names: str, timeout_seconds: float | None = 30.0) -> tuple[Diagnosis, Seen]:
        monkeypatch.setattr(processes, "_CHILD_CODE", PRELUDE + textwrap.dedent(code))
        configurations = tuple(Configuration(name=name, backend="eager") for name in names or ("one", "two", "three"))
        request = Request(target="some/m.py", configurations=configurations, budget_seconds=1.0)
        seen = Seen()
        return supervise(request, journal, seen.watch, timeout_seconds), seen

    return run_child


def statuses(diagnosis: Diagnosis) -> dict[str, str]:
    return {trial.name: trial.status for trial in diagnosis.trials}


def failure_of(diagnosis: Diagnosis, name: str) -> Failure:
    failure = diagnosis.trial(name).failure
    assert failure is not None
    return failure


def test_a_child_that_finishes_is_asked_once_and_a_finished_run_starts_no_process(run: Any, journal: Journal) -> None:
    diagnosis, seen = run("run_all(lambda name: channel.send(Progress(name, 1, 3))); finish()")

    assert statuses(diagnosis) == {"one": "ok", "two": "ok", "three": "ok"}
    assert [step.stage for step in seen.steps] == ["one", "two", "three"]
    assert [len(record.trials) for record in seen.records] == [1, 2, 3]
    assert list(diagnosis.stage_seconds) == ["starting", "one", "two", "three"]
    assert seen.output == b"does ['one', 'two', 'three']\n"
    assert seen.warnings == []
    assert journal.finished is not None
    assert diagnosis_of(journal.finished.recordings) == diagnosis

    journal.finish(a_kept(a_trial("eager")))

    diagnosis, seen = run("os.abort()")

    assert statuses(diagnosis) == {"eager": "ok"}
    assert seen.output == b""


def test_what_ran_on_a_processor_is_timed_in_processes_of_their_own(
    run: Any, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def times(kept: Kept, request: Request, progress: Any, earlier: object, limit_seconds: float | None) -> Any:
        assert earlier is None
        asked.append(([recording.name for recording in kept.recordings], limit_seconds))
        head = msgspec.structs.replace(kept.head, recommendation=a_recommendation(None, reason="timed"))
        return tuple(msgspec.structs.replace(one, head=head) for one in kept.recordings)

    monkeypatch.setattr(supervisor_module, "timed", times)
    diagnosis, _ = run('DEVICE = "cpu"\nrun_all(print)\nfinish()', "one", "two")

    assert asked == [(["one", "two"], 30.0)]
    assert diagnosis.recommendation is not None
    assert diagnosis.recommendation.reason == "timed"
    assert journal.finished is not None


def test_where_there_is_no_room_for_them_another_process_times_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> NoReturn:
        raise SubjectError("2 processes do not fit")

    monkeypatch.setattr(supervisor_module, "timed", refuses)
    code = 'DEVICE = "cpu"\nrun_all(print)\nos.write(1, f"times {request.times_here} {done}\\n".encode())\nfinish()'
    diagnosis, seen = run(code, "one", "two")

    assert seen.warnings == ["all configurations are timed in one process: 2 processes do not fit"]
    assert b"times False ['one', 'two']" in seen.output
    assert b"times True ['one', 'two']" in seen.output
    assert statuses(diagnosis) == {"one": "ok", "two": "ok"}


def test_a_finished_run_that_left_something_undecided_goes_on_with_all_that_is_done(run: Any, journal: Journal) -> None:
    run("run_all(lambda name: None); finish()")
    assert journal.finished is not None
    noise = a_ratio("two", 1.0, width=0.5, decided=False)
    comparison = a_comparison(noise, fastest=("one", "two"), baseline="one", undecided=("two",))
    head = msgspec.structs.replace(journal.finished.recordings[0].head, comparison=comparison)
    recordings = [msgspec.structs.replace(one, head=head) for one in journal.finished.recordings]
    journal.finish(msgspec.structs.replace(journal.finished, recordings=tuple(recordings)))

    diagnosis, seen = run("assert request.kept.head.comparison.undecided == ('two',); finish()")

    assert seen.output == b"does []\n"
    assert seen.warnings == []
    assert diagnosis.comparison is None  # what the child says now
    assert run("os.abort()")[0] == diagnosis


@pytest.mark.parametrize(
    ("crash", "what"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process died of signal 11 (SIGSEGV, segmentation fault) while"),
        ("os._exit(7)", "the process ended with exit status 7, as os._exit() does, while it ran"),
        ("raise SystemError('deep inside')", "the process ended with exit status 1, as os._exit() does, while it ran"),
        ("os.close(channel._descriptor); channel.keep(None, None)", "the process ended with exit status 71, "),
    ],
)
def test_a_crash_costs_the_configuration_under_way(run: Any, crash: str, what: str) -> None:
    diagnosis, seen = run(f"""
    def crash(name):
        channel.began(name, "run", is_new=False)
        if name == "two":
            os.write(2, b"the last words\\n")
            {crash}
    run_all(crash)
    finish()
    """)

    assert statuses(diagnosis) == {"one": "ok", "two": "crashed", "three": "ok"}
    failure = failure_of(diagnosis, "two")
    assert failure.kind == "run"
    assert failure.message.startswith(what)
    assert "the last words" in str(failure.log)
    assert seen.output.startswith(b"does ['one', 'two', 'three']\nthe last words\n")
    assert seen.output.endswith(b"does ['three']\n")
    assert seen.warnings == [f"two: {failure.message}; going on without it"]


GARBAGE = """
def talk(name):
    if name == "one":
        os.write(channel._descriptor, {})
        time.sleep(60)
run_all(talk)
finish()
"""
HANGS = """
def hang_here(name):
    while name == "two":
        time.sleep(0.01)
run_all(hang_here)
finish()
"""
STOPS = 'run_all(lambda name: os.kill(os.getpid(), signal.SIGSTOP) if name == "one" else None); finish()'
SHOUTS = """
def shout(name):
    while name == "one":
        os.write(1, b"x" * 4096)
run_all(shout)
finish()
"""
SHARES_ITS_TIME = """
def slowly(name):
    for stage in ("compile", "run", "profile", "measure") * 10 * (name == "one"):
        channel.began(name, stage, is_new=False)
        time.sleep(0.2)
run_all(slowly)
finish()
"""
TAKES_TURNS = """
run_all(lambda name: None)
channel.began(None, TURNS)
for _ in range(8):
    for position, name in enumerate(names):
        if name not in request.lost:
            board.write(position)
            time.sleep(0.15)
board.write(1)
if "two" not in request.lost:
    os.kill(os.getpid(), signal.SIGBUS)
channel.began(None, "looking for findings")
finish()
"""
ENDLESS_TURN = """
run_all(lambda name: None)
channel.began(None, TURNS)
board.write(2)
while "three" not in request.lost:
    time.sleep(0.01)
finish()
"""
DIES_LATER = """
run_all(lambda name: None)
if "one" not in request.lost:
    channel.began("one", "compile")
    os._exit(3)
finish()
"""
LOSES_ITS_DEVICE = """
def lose(name):
    if name == "two":
        channel.send(Broken(configuration=name, failure=Failure(kind="run", message="CUDA error: an assert")))
        time.sleep(60)
run_all(lose)
finish()
"""
LATE = "it took longer than 2 s, the limit for one configuration, while "


@pytest.mark.parametrize(
    ("code", "ended", "kind", "message", "log"),
    [
        (HANGS, "ok timed_out ok", "prepare", f"{LATE}the model was copied and converted", "in hang_here"),
        (STOPS, "timed_out ok ok", "prepare", LATE, ""),
        (SHOUTS, "timed_out ok ok", "prepare", LATE, "xxx"),
        (SHARES_ITS_TIME, "timed_out ok ok", None, LATE, ""),
        (TAKES_TURNS, "ok crashed ok", "measure", "the process died of signal 7 (SIGBUS, bus error) while it was", ""),
        (ENDLESS_TURN, "ok ok timed_out", "measure", LATE, ""),
        (DIES_LATER, "crashed ok ok", "compile", "the process ended with exit status 3", ""),
        (GARBAGE.format("b'\\xff' * 100"), "crashed ok ok", "prepare", "the process sent what is no message (", ""),
        (GARBAGE.format("b'\\0\\0\\0\\5hello'"), "crashed ok ok", "prepare", "the process sent what is no mess", ""),
        (GARBAGE.format("(2**31).to_bytes(4, 'big')"), "crashed ok ok", "prepare", "the process sent what is no m", ""),
        (LOSES_ITS_DEVICE, "ok crashed ok", "run", "CUDA error: an assert", ""),
    ],
)
def test_what_goes_wrong_with_one_configuration_costs_that_one(
    run: Any, code: str, ended: str, kind: str | None, message: str, log: str
) -> None:
    start = time.monotonic()
    diagnosis, _ = run(code, timeout_seconds=2.0)

    assert time.monotonic() - start < 60
    assert list(statuses(diagnosis).values()) == ended.split()
    (failure,) = (trial.failure for trial in diagnosis.trials if trial.failure is not None)
    assert kind in (None, failure.kind)
    assert failure.message.startswith(message)
    assert log in (failure.log or "")


@pytest.mark.parametrize(
    ("kind", "expected", "status"),
    [
        ("UsageError", UsageError, 2),
        ("SubjectError", SubjectError, 3),
        ("UnknownConfigurationError", UnknownConfigurationError, 2),
        ("NoSuchError", LayoutDoctorError, 3),
        ("first_line", LayoutDoctorError, 3),
    ],
)
def test_what_the_child_refuses_is_raised_here(
    run: Any, kind: str, expected: type[LayoutDoctorError], status: int
) -> None:
    with pytest.raises(expected, match=r"^cannot do that$") as caught:
        run(f'channel.send(Refused(kind="{kind}", message="cannot do that")); time.sleep(60)')

    assert caught.value.exit_status == status


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_a_child_that_dies_before_any_configuration_is_no_crash_of_one(run: Any, names: list[str]) -> None:
    with pytest.raises(SubjectError) as caught:
        run("os.write(1, b'libsomething is too old\\n'); os.abort()", *names)

    message = str(caught.value)
    assert message.startswith("cannot diagnose m.py: the process died of signal 6 (SIGABRT, aborted) while the model ")
    assert "before any configuration was tried" in message
    assert "--no-isolation" in message


def test_a_child_that_cannot_start_is_said_in_a_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: Any, **__: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")  # a mock's error would keep what it passed through

    monkeypatch.setattr(subprocess, "Popen", no_more)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(SubjectError, match="cannot start a process for the diagnosis: Resource temporarily"):
        run("")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before

    monkeypatch.setattr(processes.sys, "executable", "")

    with pytest.raises(SubjectError, match=r"sys\.executable is empty"):
        run("")


LEAVES_PROCESSES = """
def start(name):
    if name == "one":
        ours = [subprocess.Popen(["sleep", "321"], start_new_session=True, close_fds=False).pid]
        ours += [int(subprocess.run(["sh", "-c", "sleep 322 > /dev/null 2>&1 & echo $!"], capture_output=True).stdout)]
        ours += [os.fork()]
        if ours[-1] == 0:
            time.sleep(323)
        print("started", *ours, flush=True)
        os._exit(1)
run_all(start)
finish()
"""


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


def test_what_the_model_started_goes_with_it(run: Any) -> None:
    diagnosis, seen = run(LEAVES_PROCESSES)

    assert statuses(diagnosis) == {"one": "crashed", "two": "ok", "three": "ok"}
    pids = [int(word) for word in seen.output.split(b"started ")[1].splitlines()[0].split()]
    time.sleep(0.2)
    # The first made a session of its own, and its parent was gone before anybody looked.
    assert [lives(pid) for pid in pids] == [True, False, False]
    os.kill(pids[0], signal.SIGKILL)


def test_a_killed_child_leaves_its_last_lines_and_how_much_it_held_but_no_temporary_file(run: Any) -> None:
    diagnosis, seen = run(
        """
    import tempfile
    from layoutdoctor.isolation.processes import scratch_prefix
    def leave(name):
        directory = tempfile.mkdtemp(prefix=scratch_prefix(os.getpid()))
        open(directory + "/trace.json", "w").write("{}")
        print("made", directory, os.getpid(), flush=True)
        block = bytearray(os.urandom(1)) * 100_000_000
        time.sleep(1.5)
        for number in range(30_000):
            os.write(1, f"line {number} {'x' * 500}\\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    run_all(leave)
    finish()
    """,
        "one",
    )

    failure = failure_of(diagnosis, "one")
    lines = str(failure.log).splitlines()
    assert lines[-1].startswith("line 29999 xxx")
    assert len(lines) <= 200
    assert max(map(len, lines)) == 400
    assert len(seen.output) > 15_000_000
    held = failure.message.rpartition("; it held up to ")[2]
    assert held.endswith(" MiB")
    assert 100 < float(held.removesuffix(" MiB")) < 200
    _, directory, number = next(line for line in seen.output.decode().splitlines() if line.startswith("made ")).split()
    assert Path(directory).name.startswith(scratch_prefix(int(number)))
    assert not Path(directory).exists()


def test_what_is_done_is_examined_while_nothing_is_measured(
    run: Any, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    hear, examine = supervisor_module._Child._hear, supervisor_module.diagnosis_of

    def heard(self: Any, message: Any) -> None:
        happened.append(getattr(message, "stage", type(message).__name__))
        hear(self, message)

    def examined(recordings: Any, known: Any) -> Diagnosis:
        happened.append(f"examined {len(recordings)}")
        return examine(recordings, known)

    monkeypatch.setattr(supervisor_module._Child, "_hear", heard)
    monkeypatch.setattr(supervisor_module, "diagnosis_of", examined)
    run("""
    run_all(lambda name: name == "three" and channel.began(name, "compile"))
    channel.began(None, "measure")
    finish()
    """)

    measured = happened.index("measure")
    assert "examined 2" in happened[:measured]
    assert happened[measured + 1] == "Finished"
    assert set(happened[measured + 2 :]) == {"examined 3"}


def test_a_fault_of_the_examination_costs_nothing_that_was_measured(
    run: Any, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_only(self: Any, message: Any) -> None:
        journal.keep(journal.kept.with_trial(message.recording, message.memo))
        self._board.let_go_on()

    monkeypatch.setattr(supervisor_module._Child, "_keep", keep_only)
    monkeypatch.setattr(supervisor_module, "diagnosis_of", mock.Mock(side_effect=RuntimeError("planted")))
    with pytest.raises(RuntimeError, match="planted"):
        run("run_all(lambda name: None); finish()")

    assert journal.finished is not None
    assert [kept.name for kept in journal.finished.recordings] == ["one", "two", "three"]
    monkeypatch.undo()
    diagnosis, _ = run("os.abort()")
    assert statuses(diagnosis) == {"one": "ok", "two": "ok", "three": "ok"}


def test_a_run_goes_on_where_another_one_ended(run: Any, journal: Journal) -> None:
    with pytest.raises(LayoutDoctorError):
        run('run_all(lambda name: name == "three" and channel.send(Refused(kind="SubjectError", message="stop")))')
    assert {kept.name for kept in journal.kept.recordings} >= {"one", "two"}

    diagnosis, seen = run("run_all(lambda name: None); finish()")

    assert statuses(diagnosis) == {"one": "ok", "two": "ok", "three": "ok"}
    assert b"'one'" not in seen.output
    assert journal.kept.memos


DERIVES = """
run_all(lambda name: None)
added = Configuration(name="two+cure", backend="eager", cures=(Cure(name="cure"),))
if added.name not in names:
    channel.send(Derived(configurations=(added,)))
    names.append(added.name)
    request = msgspec.structs.replace(request, configurations=(*request.configurations, added))
    {}
    run_all(lambda name: None)
channel.began(None, TURNS)
board.write(names.index(added.name))
{}
finish()
"""


@pytest.mark.parametrize(
    ("first", "then", "processes", "status"),
    [
        ("pass", "pass", 1, "ok"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "pass", 2, "crashed"),
        ("pass", "if not request.lost: os.kill(os.getpid(), signal.SIGKILL)", 2, "crashed"),
    ],
)
def test_what_a_child_derives_is_known_to_the_next_one(
    run: Any, journal: Journal, first: str, then: str, processes: int, status: str
) -> None:
    if first != "pass":
        first = f"channel.began(added.name, 'prepare'); {first}"

    diagnosis, seen = run(DERIVES.format(first, then))

    assert statuses(diagnosis) == {"one": "ok", "two": "ok", "three": "ok", "two+cure": status}
    assert seen.output.count(b"does ") == processes
    assert [configuration.name for configuration in journal.kept.derived] == ["two+cure"]


def test_nothing_of_a_run_stays_open(run: Any) -> None:
    run("run_all(lambda name: None); finish()")  # what is opened once for all
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())

    run("run_all(lambda name: os._exit(1)); finish()", "four", "five")

    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_a_child_may_tidy_up_after_it_is_done(run: Any, tmp_path: Path) -> None:
    diagnosis, seen = run(
        f"""
        run_all(lambda name: None)
        channel.send(Finished(recordings=recordings(done)))
        os.write(1, b"tidying up\\n")
        time.sleep(0.5)
        open({str(tmp_path / "tidy")!r}, "w").close()
        os._exit(0)
        """,
        timeout_seconds=None,
    )

    assert statuses(diagnosis) == {"one": "ok", "two": "ok", "three": "ok"}
    assert (tmp_path / "tidy").exists()
    assert seen.output.endswith(b"tidying up\n")


def test_the_child_waits_while_its_trial_is_examined(
    run: Any, journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marks: list[bool] = []
    examine = supervisor_module.diagnosis_of

    def examined(recordings: Any, known: Any) -> Diagnosis:
        time.sleep(0.3)
        marks.append((tmp_path / f"after {len(recordings)}").exists())
        return examine(recordings, known)

    monkeypatch.setattr(supervisor_module, "diagnosis_of", examined)
    run(
        f"""
        keep = channel.keep
        def keep_and_mark(recording, memo):
            keep(recording, memo)
            open(os.path.join({str(tmp_path)!r}, f"after {{channel._kept_count}}"), "w").close()
        channel.keep = keep_and_mark
        run_all(lambda name: None)
        finish()
        """,
        timeout_seconds=0.2,
    )

    assert marks == [False, False, False, True]
