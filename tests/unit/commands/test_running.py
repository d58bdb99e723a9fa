"""How a command runs a diagnosis: the folder that it goes on from, the launcher that it shares, and signals."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_configuration, a_diagnosis, a_failed_trial, a_trial, recordings_of
from loops import for_each

from layoutdoctor.commands import running as module
from layoutdoctor.commands.output import save_recordings
from layoutdoctor.commands.running import (
    Folder,
    Interrupted,
    Running,
    check_request,
    ending_signals,
)
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.run.watching import Watch

REQUEST = Request(
    target="model.py", configurations=tuple(map(a_configuration, ("inductor", "eager", "inductor-layout-opt-on")))
)
MEASURED = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager"), a_failed_trial("inductor-layout-opt-on")))


class FakeEngine:
    """Stands for launcher and diagnosis: shows recordings of what it was asked for, then ends as the test says."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.launchers: list[FakeEngine] = []
        self.error: BaseException | None = None
        self.is_alive, self.is_closed = True, False

    def launch(self) -> FakeEngine:
        self.launchers.append(FakeEngine())
        return self.launchers[-1]

    def close(self) -> None:
        self.is_closed = True

    def diagnose(self, launcher: object, request: Request, watch: Watch) -> Diagnosis:
        assert launcher is self.launchers[-1]
        self.asked.append([configuration.name for configuration in request.configurations])
        found = [one for one in MEASURED if one.name in self.asked[-1]]
        head = msgspec.structs.replace(found[0].head, configurations=tuple(one.name for one in found))
        found = [msgspec.structs.replace(one, head=head) for one in found]
        watch.show(found)
        if self.error is not None:
            raise self.error
        return diagnose_recordings(watch.finished(found))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(module, "Launcher", fake.launch)
    monkeypatch.setattr(module, "diagnose_request", fake.diagnose)
    return fake


def run(folder: Path, request: Request = REQUEST) -> list[str]:
    """The names of the trials."""
    with Running() as running:
        diagnosis = running.diagnose(request, lambda p: None, lambda d: None, lambda t: None, Folder(folder, request))
    return [trial.name for trial in diagnosis.trials]


def test_a_run_that_came_to_its_end_is_examined_again_and_half_a_file_is_recorded_again(
    engine: FakeEngine, tmp_path: Path
) -> None:
    first = run(tmp_path / "new")
    assert sorted(run(tmp_path / "new")) == sorted(first)
    assert len(engine.asked) == 1

    half = tmp_path / "new" / "eager.recording"
    half.write_bytes(half.read_bytes()[:-100])
    run(tmp_path / "new")
    assert engine.asked[1:] == [["inductor", "eager"]]


def test_a_failure_in_a_run_that_was_interrupted_is_not_tried_again(engine: FakeEngine, tmp_path: Path) -> None:
    engine.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(list(tmp_path.glob("*.recording"))) == 3
    engine.error = None

    assert run(tmp_path) == ["inductor", "eager", "inductor-layout-opt-on"]
    assert engine.asked[1:] == [["inductor", "eager"]]


def test_if_all_failed_nothing_runs(engine: FakeEngine, tmp_path: Path) -> None:
    request = msgspec.structs.replace(REQUEST, configurations=(a_configuration("inductor-layout-opt-on"),))
    Folder(tmp_path, request)
    save_recordings(MEASURED[2:], tmp_path)

    assert run(tmp_path, request) == ["inductor-layout-opt-on"]
    assert engine.launchers == []


@for_each("changes", [{"target": "other.py"}, {"inputs": ("f32[2]",)}, {"configurations": REQUEST.configurations[:1]}])
def test_a_folder_is_of_one_target_and_its_options_but_for_limits(
    changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    monkeypatch.chdir(folder.parent)
    (folder.parent / "model.py").write_text("one", encoding="utf-8")
    Folder(folder, REQUEST)
    Folder(folder, msgspec.structs.replace(REQUEST, timeout_seconds=3.0, budget_seconds=9.0, command="another"))

    of_another = "it is of another target, or of other options or versions; give the same"
    with pytest.raises(UsageError, match=of_another):
        Folder(folder, msgspec.structs.replace(REQUEST, **changes))
    (folder.parent / "model.py").write_text("edited", encoding="utf-8")
    with pytest.raises(UsageError, match=of_another):
        Folder(folder, REQUEST)


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "eager.recording").write_text("mine", encoding="utf-8")

    with pytest.raises(UsageError, match="it holds other files; give a folder that --resume wrote, or an empty"):
        Folder(tmp_path, REQUEST)
    assert [one.name for one in tmp_path.iterdir()] == ["eager.recording"]


def test_diagnoses_of_one_command_share_a_launcher_that_is_closed_at_the_end(engine: FakeEngine) -> None:
    def diagnose_with_errors() -> None:
        with Running() as running:
            for is_alive in (True, True, False):
                if engine.launchers:
                    engine.launchers[0].is_alive = is_alive
                running.diagnose(REQUEST, lambda p: None, lambda d: None, lambda t: None)
            engine.error = SubjectError("cannot run it")
            running.diagnose(REQUEST, lambda p: None, lambda d: None, lambda t: None)

    with pytest.raises(SubjectError):
        diagnose_with_errors()

    assert len(engine.launchers) == 2
    assert engine.launchers[1].is_closed


@for_each("changes", [{"target": "\udcff.py"}, {"inputs": ("\udcff",)}, {"config": ("\udcff",)}])
def test_a_word_that_is_no_text_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="it is no text in UTF-8; give a copy or a link under another name"):
        check_request(msgspec.structs.replace(REQUEST, **changes))


def test_signals_that_end_a_process_are_raised_and_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Both are ignored under nohup and in the background, where the tests may run.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = [signal.getsignal(number) for number in numbers]
    hows = "interrupted from the keyboard", "ended from outside (SIGTERM)", "its terminal was closed (SIGHUP)"
    for number, how in zip(numbers, hows, strict=True):
        with pytest.raises(Interrupted) as caught, ending_signals():
            os.kill(os.getpid(), number)
        assert (str(caught.value), caught.value.exit_status) == (how, 128 + number)
    assert [signal.getsignal(number) for number in numbers] == before

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending_signals():
        os.kill(os.getpid(), signal.SIGHUP)
    signal.signal(signal.SIGHUP, hangup)
    signal.signal(signal.SIGINT, interrupt)
