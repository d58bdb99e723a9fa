"""``diagnose`` in this process, with an engine that measures nothing."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from builders import (
    a_comparison,
    a_diagnosis,
    a_failed_trial,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    recordings_of,
)

from layoutdoctor.__main__ import main
from layoutdoctor.commands import isolation as isolation_module
from layoutdoctor.commands import output as output_module
from layoutdoctor.commands.diagnose import command_without_folders
from layoutdoctor.commands.isolation import Isolation
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.records import Diagnosis, Finding
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.errors import SubjectError
from layoutdoctor.isolation.messages import Listener, Progress, Request, TrialMemo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.recording.recording import Recording

PARTIAL = a_diagnosis(a_trial("eager"))
WARNING = Finding(
    code="LD205",
    rule="input-format-mismatch",
    severity="warning",
    configuration="inductor",
    message="the input is contiguous",
)
FULL = a_diagnosis(
    a_trial("eager"),
    a_trial("inductor"),
    comparison=a_comparison(a_ratio("eager", 0.5)),
    recommendation=a_recommendation(),
    findings=(WARNING,),
)


class FakeEngine:
    """Stands for the loader and the doctor: remembers what it was asked, returns or raises what the test says."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.asked = Request()
        self.result: Diagnosis = FULL
        self.error: BaseException | None = None
        self.during: Callable[[], None] = lambda: None

    def load_requested(self, request: Request) -> str:
        names = ("target", "inputs", "device", "dtype", "module")
        self.loaded = {name: getattr(request, name) for name in names}
        return "subject"

    def record_subject(self, subject: str, request: Request, listener: Listener) -> tuple[Recording, ...]:
        assert subject == "subject"
        self.asked = request
        listener.progress(Progress("eager: round 1 of 20", 1, 2))
        listener.progress(Progress("eager: round 2 of 20", 1, 2))
        print("the model prints")
        listener.keep(recordings_of(PARTIAL)[0], TrialMemo())
        self.during()
        if self.error is not None:
            raise self.error
        return recordings_of(self.result)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setitem(
        sys.modules, "layoutdoctor.run.diagnose", types.SimpleNamespace(record_subject=fake.record_subject)
    )
    # What is made of recordings is no matter of the command.
    monkeypatch.setattr(isolation_module, "diagnosis_of", lambda *_: PARTIAL)
    monkeypatch.setattr(isolation_module, "diagnose_recordings", lambda *_, **__: fake.result)
    monkeypatch.setitem(
        sys.modules, "layoutdoctor.subjects.load", types.SimpleNamespace(load_requested=fake.load_requested)
    )
    monkeypatch.setattr(isolation_module, "prepare_isolation", lambda _, request: Isolation(request, None, None, ()))
    return fake


def test_the_word_diagnose_may_be_left_out(engine: FakeEngine) -> None:
    assert main(["model.py"]) == 0
    without = (engine.loaded, msgspec.structs.replace(engine.asked, command=None))
    assert main(["diagnose", "model.py"]) == 0

    assert (engine.loaded, msgspec.structs.replace(engine.asked, command=None)) == without


def test_every_option_reaches_the_engine_and_so_do_defaults(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--mode", "training", "--budget", "5", "m.py:Net", "--input", "f32[1]", "--input", "f32[2]", "--device"]
    words += ["cpu", "--dtype", "bf16", "--configurations", "eager,inductor", "--save-traces", str(tmp_path / "traces")]

    assert main(words) == 0

    assert engine.loaded == {
        "target": "m.py:Net",
        "inputs": ("f32[1]", "f32[2]"),
        "device": "cpu",
        "dtype": "bf16",
        "module": None,
    }
    assert engine.asked.mode == "training"
    assert [configuration.name for configuration in engine.asked.configurations] == ["eager", "inductor"]
    assert engine.asked.budget_seconds == 5
    assert engine.asked.trace_directory == str(tmp_path / "traces")
    assert (engine.asked.command or "").startswith("layoutdoctor --mode training --budget 5 m.py:Net")

    (tmp_path / "traces" / "eager.json.gz").touch()
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    (tmp_path / "traces" / "eager.json.gz").rename(tmp_path / "traces" / "inductor+flat-conv3d.json.gz")
    assert main(words) == 2
    assert "'inductor+flat-conv3d.json.gz' is there already; pass --force to replace it" in capsys.readouterr().err

    for mode, count in (("inference", 3), ("training", 2)):
        main(["m.py", "--quick", "--mode", mode])
        assert engine.asked.configurations == choose_configurations("quick", mode)
        assert len(engine.asked.configurations) == count
        assert engine.asked.is_quick

    main(["m.py"])

    assert not engine.asked.is_quick

    assert engine.loaded == {"target": "m.py", "inputs": (), "device": None, "dtype": None, "module": None}
    assert engine.asked.budget_seconds is None
    assert engine.asked.trace_directory is None
    assert engine.asked.configurations == choose_configurations("default")


def test_what_noise_leaves_undecided_exits_with_4_unless_findings_are_what_was_asked_for(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = a_ratio("eager", 1.0, width=0.5, decided=False)
    comparison = a_comparison(noise, fastest=("inductor", "eager"), seconds_to_decide=70.0)
    engine.result = msgspec.structs.replace(FULL, comparison=comparison, recommendation=a_recommendation(None))

    assert main(["m.py"]) == 4
    assert "about 70.0 s more of rounds would tell (--budget)" in " ".join(capsys.readouterr().out.split())
    far = msgspec.structs.replace(comparison, seconds_to_decide=23_600.0)
    engine.result = msgspec.structs.replace(engine.result, comparison=far)
    assert main(["m.py"]) == 4
    assert "too close for rounds to tell" in " ".join(capsys.readouterr().out.split())
    assert main(["m.py", "--fail-on", "error"]) == 0
    equal = a_comparison(a_ratio("eager", 1.0, width=0.01, decided=True), fastest=("inductor", "eager"))
    engine.result = msgspec.structs.replace(engine.result, comparison=equal)
    assert main(["m.py"]) == 0


def test_standard_output_holds_the_report_only_and_standard_error_as_much_as_was_asked_for(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["m.py", "--format", "json"])
    captured = capsys.readouterr()

    assert msgspec.json.decode(captured.out.encode(), type=Diagnosis) == FULL
    eager = "layoutdoctor: eager: 15.0 ms in kernels, converted per call: nothing\n"
    assert captured.err == f"layoutdoctor: [1/2] eager: round 1 of 20\nthe model prints\n{eager}"

    main(["m.py", "-q"])

    assert capsys.readouterr().err == "the model prints\n"

    main(["m.py", "-v"])

    assert "layoutdoctor: version " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m.py", "--configurations", "nhwc"], "cannot diagnose under configuration 'nhwc'"),
        (["m.py", "--quick", "--configurations", "eager"], "not allowed with argument --quick"),
        (["m.py", "--configurations", ","], "cannot diagnose without a configuration"),
        (["m.py", "--fail-on", "LD999"], "cannot fail on 'LD999': expected error, warning or one of LD101"),
        (["m.py", "--fail-on", "note"], "cannot fail on 'note': expected error, warning or one of LD101"),
        (["m.py", "--budget", "0"], "cannot use '0' as seconds: expected a number above 0, such as 30"),
        (["m.py", "--budget", "nan"], "cannot use 'nan' as seconds"),
        (["m.py", "--budget", "inf"], "cannot use 'inf' as seconds"),
        (["m.py", "--budget", "soon"], "cannot use 'soon' as seconds"),
        (["m.py", "--output", "report.pdf"], "cannot tell the format of 'report.pdf': got suffix '.pdf'"),
        (["m.py", "--output", "missing/r.md"], "cannot write 'missing/r.md': there is no directory 'missing'"),
        (["m.py", "--output", "r.md", "--output", "./r.md"], "cannot write './r.md' twice"),
        (["m.py", "--output", "folder.md"], "cannot write 'folder.md': it is a directory"),
        (["m.py", "--output", "there.md"], "cannot write 'there.md': it exists already; pass --force to replace it"),
        (["m.py", "--save-traces", "there.md"], "cannot save traces in 'there.md': File exists"),
        (["m.py", "--format", "pdf"], "argument --format: invalid choice: 'pdf'"),
        (
            ["m.py", "--target", "cuda:91"],
            "cannot lower for target 'cuda:91': expected one of cuda:80, cuda:89, cuda:90",
        ),
        (
            ["m.py", "--target", "cuda:90", "--device", "cuda"],
            "cannot lower for --target cuda:90 with --device cuda: the",
        ),
        (["m.py", "-q", "-v"], "not allowed with argument"),
        (["--budget", "3"], "cannot diagnose nothing: expected a TARGET such as model.py"),
        (["explain", "LD999"], "cannot explain rule 'LD999': expected one of LD101"),
        (["render"], "the following arguments are required: SAVED.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_before_torch_is_touched(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "layoutdoctor.run.diagnose", None)  # importing it would raise
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "there.md").write_text("mine")

    assert main(words) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert (tmp_path / "there.md").read_text() == "mine"
    assert not (tmp_path / "r.md").exists()


def test_an_output_that_cannot_be_opened_is_found_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        output_module, "check_directory", mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    )

    assert main(["m.py", "--output", str(tmp_path / "r.md")]) == 2
    assert capsys.readouterr().err == (
        f"layoutdoctor: error: cannot write {str(tmp_path / 'r.md')!r}: Permission denied; name another file\n"
    )


def test_what_was_measured_is_on_disk_while_the_rest_runs(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    seen = []
    engine.during = lambda: seen.append(load(path))

    main(["m.py", "--output", str(path), "--output", str(tmp_path / "r.md")])

    assert seen == [PARTIAL]
    assert load(path) == FULL


def test_a_stop_before_the_first_trial_saves_nothing(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        sys.modules,
        "layoutdoctor.subjects.load",
        types.SimpleNamespace(load_requested=mock.Mock(side_effect=KeyboardInterrupt)),
    )

    assert main(["m.py", "--output", str(tmp_path / "r.json")]) == 130
    assert not (tmp_path / "r.json").exists()
    assert capsys.readouterr().err == "layoutdoctor: interrupted before the first configuration was done\n"


def test_an_error_after_a_trial_keeps_the_trials_so_far_and_a_bug_its_traceback_too(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.error = SubjectError("cannot run the model: \x1b[31mboom\nhere")

    assert main(["m.py", "--output", str(tmp_path / "r.json")]) == 3

    assert load(tmp_path / "r.json").interrupted == "SubjectError: cannot run the model: \x1b[31mboom"
    captured = capsys.readouterr()
    assert captured.err.endswith("layoutdoctor: error: cannot run the model: \\x1b[31mboom here\n")
    assert captured.out == ""

    engine.error = ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        main(["m.py", "--output", str(tmp_path / "bug.json")])

    assert load(tmp_path / "bug.json") == PARTIAL


@pytest.mark.parametrize(("status", "expected"), [("ok", 0), ("failed", 4), ("skipped", 4)])
def test_a_target_is_handed_on_and_needs_one_lowered_trial(
    engine: FakeEngine, tmp_path: Path, status: str, expected: int
) -> None:
    trial = a_trial(status=status, kernels=None, measurement=None, equivalence=None, is_static=True)
    engine.result = a_diagnosis(trial, subject=a_subject(device="cuda", target="cuda:90"))

    assert main(["m.py", "--target", "cuda:90", "--save-traces", str(tmp_path / "traces")]) == expected
    assert (engine.asked.lower_for, engine.loaded["device"]) == ("cuda:90", "cpu")
    assert engine.asked.trace_directory is None
    assert not (tmp_path / "traces").exists()


def test_nothing_measured_is_inconclusive_and_still_reported(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.result = a_diagnosis(a_failed_trial("eager"), a_failed_trial("inductor"))

    assert main(["m.py", "--output", str(tmp_path / "r.json")]) == 4
    assert "Nothing could be concluded: no configuration was measured" in capsys.readouterr().out
    assert load(tmp_path / "r.json") == engine.result


def test_one_measured_of_several_is_inconclusive_but_not_one_of_one_nor_of_several_that_are_the_same(
    engine: FakeEngine,
) -> None:
    engine.result = a_diagnosis(a_trial("inductor"))

    assert main(["m.py", "--configurations", "eager,inductor"]) == 4
    assert main(["m.py", "--configurations", "inductor"]) == 0

    same = a_trial("eager-channels-last", status="same_as", same_as="eager", measurement=None)
    engine.result = a_diagnosis(a_trial("eager"), same)

    assert main(["m.py", "--configurations", "eager,eager-channels-last"]) == 0


def test_folders_stay_out_of_the_record() -> None:
    words = ["/home/me/secret/model.py:Net", "--output=/tmp/x/r.json", "--input", "f32[1, 3]"]

    assert command_without_folders(words) == "layoutdoctor model.py:Net --output=r.json --input 'f32[1, 3]'"
