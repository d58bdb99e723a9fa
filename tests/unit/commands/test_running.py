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
    say_how_to_continue,
)
from layoutdoctor.errors import UsageError
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.run.watching import Watch

REQUEST = Request(
    target="model.py", configurations=tuple(map(a_configuration, ("inductor", "eager", "inductor-layout-opt-on")))
)
MEASURED = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager"), a_failed_trial("inductor-layout-opt-on")))


class FakeEngine:
    """Stands for launcher and diagnosis: shows recordings of what it was asked for, then ends as the test says."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.launchers: list[FakeEngine] = []
        self.recordings: Sequence[Recording] = MEASURED
        self.error: BaseException | None = None
        self.is_alive, self.is_closed = True, False

    def launch(self) -> FakeEngine:
        self.launchers.append(FakeEngine())
        return self.launchers[-1]

    def close(self) -> None:
        self.is_closed = True

    def diagnose(self, launcher: object, request: Request, watch: Watch) -> Diagnosis:
        assert launcher is self.launchers[-1]
        self.asked.append(request)
        names = [configuration.name for configuration in request.configurations]
        found = [one for one in self.recordings if one.name in names or "+" in one.name]
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


def run(folder: Path | None, request: Request = REQUEST, shown: list[Diagnosis] | None = None) -> Diagnosis:
    seen = [] if shown is None else shown
    with Running() as running:
        kept = None if folder is None else Folder(folder, request)
        return running.diagnose(request, lambda progress: None, seen.append, lambda table: None, kept)


def names(diagnosis: Diagnosis) -> list[str]:
    return [trial.name for trial in diagnosis.trials]


# ---------------------------------------------------------------------------------------------- a folder
def test_a_run_that_came_to_its_end_is_examined_again_and_nothing_runs(engine: FakeEngine, tmp_path: Path) -> None:
    first = run(tmp_path / "new")
    again = run(tmp_path / "new")

    assert len(engine.asked) == 1
    assert sorted(names(again)) == sorted(names(first))
    assert (tmp_path / "new" / "done").exists()


def test_what_failed_in_a_run_that_was_interrupted_is_not_tried_again(engine: FakeEngine, tmp_path: Path) -> None:
    engine.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(list(tmp_path.glob("*.recording"))) == 3
    engine.error = None
    shown: list[Diagnosis] = []

    diagnosis = run(tmp_path, shown=shown)

    assert [one.name for one in engine.asked[1].configurations] == ["inductor", "eager"]
    assert names(diagnosis) == names(shown[0]) == ["inductor", "eager", "inductor-layout-opt-on"]
    assert diagnosis.trials[2].status == "failed"
    assert len(engine.launchers) == 2


def test_where_all_are_lost_nothing_runs(engine: FakeEngine, tmp_path: Path) -> None:
    request = msgspec.structs.replace(REQUEST, configurations=(a_configuration("inductor-layout-opt-on"),))
    Folder(tmp_path, request)
    save_recordings(MEASURED[2:], tmp_path)

    assert names(run(tmp_path, request)) == ["inductor-layout-opt-on"]
    assert engine.launchers == []


def test_a_derived_configuration_that_is_tried_again_has_one_row(engine: FakeEngine, tmp_path: Path) -> None:
    cured = a_failed_trial("inductor+flat-conv3d")
    Folder(tmp_path, REQUEST)
    save_recordings(recordings_of(a_diagnosis(cured)), tmp_path)
    engine.recordings = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("inductor+flat-conv3d")))

    diagnosis = run(tmp_path)

    assert [(trial.name, trial.status) for trial in diagnosis.trials] == [
        ("inductor", "ok"),
        ("inductor+flat-conv3d", "ok"),
    ]


def test_half_a_file_is_recorded_again_even_in_a_run_that_came_to_its_end(engine: FakeEngine, tmp_path: Path) -> None:
    run(tmp_path)
    half = tmp_path / "eager.recording"
    half.write_bytes(half.read_bytes()[:-100])

    folder = Folder(tmp_path, REQUEST)
    assert sorted(one.name for one in folder.recordings) == ["inductor", "inductor-layout-opt-on"]
    assert not folder.is_done
    run(tmp_path)
    assert [one.name for one in engine.asked[1].configurations] == ["inductor", "eager"]


@for_each(
    "changes",
    [
        {"target": "other.py"},
        {"inputs": ("f32[2]",)},
        {"configurations": REQUEST.configurations[:1]},
    ],
)
def test_a_folder_of_another_run_is_refused(changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("folder")
    Folder(folder, REQUEST)

    with pytest.raises(UsageError, match="it is of another target, or of other options or versions; give the same"):
        Folder(folder, msgspec.structs.replace(REQUEST, **changes))


def test_a_folder_serves_the_same_run_with_other_limits(tmp_path: Path) -> None:
    Folder(tmp_path, REQUEST)
    changed = msgspec.structs.replace(
        REQUEST, timeout_seconds=3.0, budget_seconds=9.0, command="another", trace_directory="t"
    )

    assert Folder(tmp_path, changed).recordings == ()


def test_a_model_that_was_edited_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("one", encoding="utf-8")
    Folder(tmp_path / "kept", REQUEST)
    Folder(tmp_path / "kept", REQUEST)
    (tmp_path / "model.py").write_text("other", encoding="utf-8")

    with pytest.raises(UsageError, match="it is of another target"):
        Folder(tmp_path / "kept", REQUEST)


@for_each("name", ["notes.txt", "eager.recording"])
def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / name).write_text("mine", encoding="utf-8")

    with pytest.raises(UsageError, match="it holds other files; give a folder that --resume wrote, or an empty"):
        Folder(folder, REQUEST)
    assert [one.name for one in folder.iterdir()] == [name]


# ---------------------------------------------------------------------------------------------- a launcher
def test_diagnoses_of_one_command_share_a_launcher_that_is_closed_at_the_end(engine: FakeEngine) -> None:
    with Running() as running:
        for _ in range(2):
            running.diagnose(REQUEST, lambda p: None, lambda d: None, lambda t: None)
        assert len(engine.launchers) == 1
        engine.launchers[0].is_alive = False
        running.diagnose(REQUEST, lambda p: None, lambda d: None, lambda t: None)

    assert len(engine.launchers) == 2
    assert engine.launchers[1].is_closed


@for_each("changes", [{"target": "\udcff.py"}, {"inputs": ("\udcff",)}, {"config": ("\udcff",)}])
def test_a_word_that_is_no_text_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="it is no text in UTF-8; give a copy or a link under another name"):
        check_request(msgspec.structs.replace(REQUEST, **changes))


# ---------------------------------------------------------------------------------------------- signals
def test_signals_that_end_a_process_are_raised_and_put_back() -> None:
    found = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which the tests may run under, ignores it
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    hows = "interrupted from the keyboard", "ended from outside (SIGTERM)", "its terminal was closed (SIGHUP)"
    for number, how in zip(numbers, hows, strict=True):
        with pytest.raises(Interrupted) as caught, ending_signals():
            os.kill(os.getpid(), number)
        assert (str(caught.value), caught.value.exit_status) == (how, 128 + number)

    assert [signal.getsignal(number) for number in numbers] == before
    signal.signal(signal.SIGHUP, found)


def test_under_nohup_a_closed_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@for_each(
    ("words", "said"),
    [
        (["m.py", "--resume", "a b"], "m.py --resume 'a b'"),
        (["m.py", "--output", "r.md"], "m.py --output r.md --force"),
        (["m.py", "--output=r.md", "--force"], "m.py --output=r.md --force"),
        (["m.py", "--save-recordings", "r"], "m.py --save-recordings r --force"),
    ],
)
def test_how_to_continue_is_the_command_with_what_it_wrote_allowed_to_be_replaced(words: list[str], said: str) -> None:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "say", lines.append)
        say_how_to_continue(words)

    assert lines == [f"continue with: python -m layoutdoctor {said}"]
