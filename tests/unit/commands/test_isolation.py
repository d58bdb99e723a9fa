"""The options that say where the model runs: what is refused, what is asked of the supervisor, how to continue."""

from __future__ import annotations

import shlex
import signal
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from builders import a_comparison, a_diagnosis, a_ratio, a_recommendation, a_trial, recordings_of

from layoutdoctor.__main__ import main
from layoutdoctor.commands import isolation as isolation_module
from layoutdoctor.commands.isolation import Terminated, ending_signals
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.isolation.messages import DEFAULT_TIMEOUT_SECONDS, Kept, Progress, Request

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.isolation.journal import Journal
    from layoutdoctor.isolation.supervisor import Watch

PARTIAL = a_diagnosis(a_trial("eager"))
KEPT = Kept(recordings=recordings_of(PARTIAL))
FULL = a_diagnosis(
    a_trial("eager"),
    a_trial("inductor"),
    comparison=a_comparison(a_ratio("eager", 0.5)),
    recommendation=a_recommendation(),
)


class FakeSupervisor:
    """Stands for the supervisor: remembers what it was asked, keeps one trial, then does what the test says."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.timeouts: list[float | None] = []
        self.journals: list[Journal] = []
        self.error: BaseException | None = None

    def __call__(self, request: Request, journal: Journal, watch: Watch, timeout_seconds: float | None) -> Diagnosis:
        self.requests.append(request)
        self.timeouts.append(timeout_seconds)
        self.journals.append(journal)
        assert watch.owns_process
        watch.progress(Progress("eager: running", 1, 2))
        watch.on_output("the model prints h\u00e9".encode()[:-1])
        watch.on_output("\u00e9\n".encode()[1:])
        journal.keep(KEPT)
        watch.on_trial(PARTIAL)
        if self.error is not None:
            raise self.error
        journal.finish(Kept(recordings=recordings_of(FULL)))
        return FULL


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    fake = FakeSupervisor()
    monkeypatch.setattr(isolation_module, "supervise", fake)
    return fake


def test_the_supervisor_is_asked_what_the_engine_would_be(supervisor: FakeSupervisor) -> None:
    assert main(["m.py:Net", "--mode", "training", "--timeout", "90"]) == 0

    (request,) = supervisor.requests
    assert (request.target, request.mode, request.command) == (
        "m.py:Net",
        "training",
        "layoutdoctor m.py:Net --mode training --timeout 90",
    )
    assert supervisor.timeouts == [90.0]
    assert not supervisor.journals[0].directory.exists()


def test_how_long_a_configuration_may_take(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--timeout", "none"], ["--timeout", "0.5"]):
        main(["m.py", *words])
    assert supervisor.timeouts == [DEFAULT_TIMEOUT_SECONDS, None, 0.5]

    capsys.readouterr()
    for text in ("0", "-1", "soon", "inf", "nan", ""):
        assert main(["m.py", f"--timeout={text}"]) == 2
        assert f"cannot use {text!r} as seconds: expected a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--timeout", "5"], ["--resume", "there"]])
def test_what_only_a_supervisor_can_do_needs_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m.py", "--no-isolation", *words]) == 2
    assert f"cannot use {words[0]} with --no-isolation" in capsys.readouterr().err


def test_what_the_child_prints_goes_to_standard_error(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["m.py"])

    captured = capsys.readouterr()
    eager = "layoutdoctor: eager: 15.0 ms in kernels, converted per call: nothing\n"
    assert captured.err == f"layoutdoctor: [1/2] eager: running\nthe model prints h\u00e9\n{eager}"
    assert captured.out.startswith("layoutdoctor 0.1.0")


@pytest.mark.parametrize(
    ("stop", "status", "how"),
    [
        (KeyboardInterrupt(), 130, "interrupted from the keyboard"),
        (Terminated(signal.SIGTERM), 143, "ended from outside (SIGTERM)"),
        (Terminated(signal.SIGHUP), 129, "its terminal was closed (SIGHUP)"),
    ],
)
def test_an_interrupted_run_says_how_to_continue(
    supervisor: FakeSupervisor,
    stop: BaseException,
    status: int,
    how: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    supervisor.error = stop
    words = ["m.py", "--output", str(tmp_path / "a b.json")]

    assert main(words) == status

    captured = capsys.readouterr()
    assert load(tmp_path / "a b.json").interrupted == how
    assert f"Not finished: {how}." in captured.out
    line = next(line for line in captured.err.splitlines() if "continue with: " in line)
    command = shlex.split(line.partition("continue with: ")[2])
    directory = supervisor.journals[0].directory
    assert command == ["python", "-m", "layoutdoctor", *words, "--resume", str(directory), "--force"]

    supervisor.error = None
    assert main(command[3:]) == 0  # as the line says
    assert supervisor.journals[1].kept == Kept(recordings=recordings_of(FULL))
    assert load(tmp_path / "a b.json").interrupted is None
    assert directory.exists()
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def test_a_directory_of_ones_own_is_named_once(
    supervisor: FakeSupervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.error = KeyboardInterrupt()

    main(["m.py", f"--resume={tmp_path / 'run'}"])

    assert f"continue with: python -m layoutdoctor m.py --resume={tmp_path / 'run'}\n" in capsys.readouterr().err


def test_where_nothing_was_done_there_is_nothing_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journals: list[Journal] = []

    def stopped(request: Request, journal: Journal, *_: Any) -> Diagnosis:
        journals.append(journal)
        raise KeyboardInterrupt

    monkeypatch.setattr(isolation_module, "supervise", stopped)

    assert main(["m.py"]) == 130
    assert "continue with" not in capsys.readouterr().err
    assert not journals[0].directory.exists()


def test_another_target_file_is_another_run(
    supervisor: FakeSupervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text("model = 1")
    words = [str(tmp_path / "m.py"), "--resume", str(tmp_path / "run")]
    assert main(words) == 0
    (tmp_path / "m.py").write_text("model = 2")

    assert main(words) == 2
    assert "m.py has changed since" in capsys.readouterr().err


def test_a_journal_that_cannot_be_kept_is_a_warning(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "mkdtemp", mock.Mock(side_effect=OSError(28, "No space left on device")))

    assert main(["m.py"]) == 0
    assert "layoutdoctor: warning: cannot keep a journal in " in capsys.readouterr().err


def test_signals_that_end_a_process_become_an_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(Terminated) as caught, ending_signals():
        signal.raise_signal(signal.SIGTERM)

    assert caught.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    seen: list[Any] = []

    def look() -> None:
        with ending_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [signal.getsignal(signal.SIGTERM)]
