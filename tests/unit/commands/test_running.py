"""How a command runs a diagnosis: the folder that it goes on from, and signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_configuration, a_diagnosis, a_failed_trial, a_trial, recordings_of

from layoutdoctor.commands import running
from layoutdoctor.commands.conclusion import Conclusion
from layoutdoctor.commands.output import save_recordings
from layoutdoctor.commands.resuming import Folder
from layoutdoctor.commands.running import Running, check_request
from layoutdoctor.commands.signals import Interrupted, ending_signals
from layoutdoctor.diagnosis.accepted import NOTHING_ACCEPTED
from layoutdoctor.errors import UsageError
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.run.watching import Watch

REQUEST = Request(
    target="model.py", configurations=tuple(map(a_configuration, ("inductor", "eager", "inductor-layout-opt-on")))
)
CONCLUSION = Conclusion((), "text", False, None, None, NOTHING_ACCEPTED, False, None)
MEASURED = recordings_of(a_diagnosis(a_trial("inductor"), a_trial("eager"), a_failed_trial("inductor-layout-opt-on")))


class FakeEngine:
    """Stands for launcher and diagnosis: shows recordings of what it was asked for, then ends as the test says."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.loaded_files: tuple[str, ...] = ()
        self.error: BaseException | None = None

    def diagnose(self, launcher: object, request: Request, watch: Watch) -> Diagnosis:
        assert launcher is self
        self.asked.append([configuration.name for configuration in request.configurations])
        found = [one for one in MEASURED if one.name in self.asked[-1]]
        head = msgspec.structs.replace(found[0].head, configurations=tuple(one.name for one in found))
        found = [msgspec.structs.replace(one, head=head) for one in found]
        watch.loaded_files = self.loaded_files
        watch.begin("compiling")
        watch.show(found)
        if self.error is not None:
            raise self.error
        return diagnose_recordings(watch.finished(found))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(running, "kept_launcher", lambda: fake)
    monkeypatch.setattr(running, "diagnose_request", fake.diagnose)
    return fake


def run(folder: Path, request: Request = REQUEST) -> list[str]:
    """The names of the trials."""
    diagnosis = Running(request, CONCLUSION, str(folder)).diagnose(quiet=True)
    return [trial.name for trial in diagnosis.trials]


def test_a_run_that_came_to_its_end_is_examined_again_and_half_a_file_is_recorded_again(
    engine: FakeEngine, tmp_path: Path
) -> None:
    first = run(tmp_path / "new")
    assert sorted(run(tmp_path / "new")) == sorted(first)
    assert len(engine.asked) == 1

    half = tmp_path / "new" / "eager.recording"
    half.write_bytes(half.read_bytes()[:-100])
    engine.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "new")
    engine.error = None
    run(tmp_path / "new")
    assert engine.asked[1:] == [["inductor", "eager"]] * 2


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
    Folder(tmp_path, request).locked.close()
    save_recordings(MEASURED[2:], tmp_path)

    assert run(tmp_path, request) == ["inductor-layout-opt-on"]
    assert engine.asked == []


@pytest.mark.parametrize(
    "changes", [{"target": "other.py"}, {"inputs": ("f32[2]",)}, {"configurations": REQUEST.configurations[:1]}]
)
def test_a_folder_is_of_one_target_and_its_options_but_for_limits(
    changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    Folder(folder, REQUEST).locked.close()
    limits = msgspec.structs.replace(REQUEST, timeout_seconds=3.0, budget_seconds=9.0, command="another")
    Folder(folder, limits).locked.close()

    with pytest.raises(UsageError, match="it has another target or other options; give the same"):
        Folder(folder, msgspec.structs.replace(REQUEST, **changes))


def edited(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    Path(engine.loaded_files[1]).write_text("edited", encoding="utf-8")
    return "helper.py"


def gone(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    Path(engine.loaded_files[1]).unlink()
    return "helper.py"


def with_another_variable(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    return "TORCHINDUCTOR_FREEZING"


def with_another_torch(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    return "torch"


def on_another_machine(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("platform.node", lambda: "another")
    return "machine"


@pytest.mark.parametrize("change", [edited, gone, with_another_variable, with_another_torch, on_another_machine])
def test_what_has_changed_since_is_said_and_all_is_measured_again(
    change: Callable[[FakeEngine, pytest.MonkeyPatch], str],
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [tmp_path / name for name in ("model.py", "helper.py")]
    for file in files:
        file.write_text("as it was", encoding="utf-8")
    engine.loaded_files = tuple(map(str, files))
    folder = tmp_path / "folder"
    run(folder)
    run(folder)
    assert len(engine.asked) == 1

    said = change(engine, monkeypatch)
    run(folder)

    assert len(engine.asked) == 2
    assert f"changed since the run that is resumed: {said}" in capsys.readouterr().err
    run(folder)
    assert len(engine.asked) == 2
    assert str(tmp_path) not in (folder / "surroundings.json").read_text()


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "eager.recording").write_text("mine", encoding="utf-8")

    with pytest.raises(UsageError, match="it holds other files; give a folder that --resume wrote, or an empty"):
        Folder(tmp_path, REQUEST)
    assert [one.name for one in tmp_path.iterdir()] == ["eager.recording"]


def test_a_folder_that_another_run_uses_is_refused_until_that_run_ends(tmp_path: Path) -> None:
    first = Folder(tmp_path, REQUEST)
    with pytest.raises(UsageError, match=r"cannot resume from '.*': another run uses it now; wait until that run has"):
        Folder(tmp_path, REQUEST)

    first.locked.close()
    Folder(tmp_path, REQUEST)


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "request.sha256")
    with pytest.raises(UsageError, match=r"cannot resume from '.*': request.sha256: it is a pipe or a device; give"):
        Folder(tmp_path, REQUEST)

    def recurse(*args: object, **options: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("pathlib.Path.mkdir", recurse)
    with pytest.raises(UsageError, match=r"cannot save recordings in '.*': too deep; name another directory"):
        Folder(tmp_path, REQUEST)


@pytest.mark.parametrize("changes", [{"target": "\udcff.py"}, {"inputs": ("\udcff",)}, {"config": ("\udcff",)}])
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
