"""``diagnose`` with an engine that measures nothing: options, outputs, and the end of each run."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import (
    a_comparison,
    a_diagnosis,
    a_failed_trial,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    recordings_of,
)

from layoutdoctor.__main__ import main
from layoutdoctor.commands.diagnose import command_without_folders
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.errors import SubjectError
from layoutdoctor.reports.sections.wording import shown_name
from layoutdoctor.workers.messages import DEFAULT_TIMEOUT_SECONDS

from .conftest import FULL, PARTIAL, FakeEngine

if TYPE_CHECKING:
    from pathlib import Path


def test_every_option_reaches_the_engine_and_so_do_defaults(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--mode", "training", "--budget", "5", "m.py:Net", "--input", "f32[1]", "--input", "f32[2]", "--device"]
    words += ["cpu", "--dtype", "bf16", "--configurations", "eager,inductor", "--save-traces", str(tmp_path / "traces")]

    assert main(words) == 0

    asked = engine.asked
    assert (asked.target, asked.inputs, asked.module) == ("m.py:Net", ("f32[1]", "f32[2]"), None)
    assert (asked.device, asked.dtype, asked.lower_for) == ("cpu", "bf16", None)
    assert (asked.mode, asked.derives, asked.tries_all, asked.is_timed) == ("training", "nothing", False, True)
    assert [configuration.name for configuration in asked.configurations] == ["eager", "inductor"]
    assert (asked.budget_seconds, asked.trace_directory) == (5, str(tmp_path / "traces"))
    assert (asked.command or "").startswith("layoutdoctor --mode training --budget 5 m.py:Net")

    (tmp_path / "traces" / "eager.json.gz").touch()
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    assert "'eager.json.gz' is there already; pass --force to replace it" in capsys.readouterr().err

    for mode, count in (("inference", 3), ("training", 2)):
        main(["m.py", "--quick", "--mode", mode])
        assert engine.asked.configurations == choose_configurations("quick", mode)
        assert len(engine.asked.configurations) == count

    main(["diagnose", "m.py"])  # the word may be left out

    asked = engine.asked
    assert (asked.target, asked.inputs, asked.device, asked.dtype, asked.module) == ("m.py", (), None, None, None)
    assert (asked.budget_seconds, asked.trace_directory, asked.derives) == (None, None, "all")
    assert asked.timeout_seconds == DEFAULT_TIMEOUT_SECONDS
    assert asked.configurations == choose_configurations("default")
    main(["m.py", "--configurations", "all", "--timeout", "none", "--module", "vae"])
    assert (engine.asked.tries_all, engine.asked.timeout_seconds, engine.asked.module) == (True, None, "vae")
    main(["m.py", "--package", str(tmp_path / "model.pt2")])
    assert engine.asked.package == str(tmp_path / "model.pt2")
    main(["m.py", "--timeout", "5"])
    assert engine.asked.timeout_seconds == 5.0


def test_an_answer_exits_with_0_whatever_it_is_and_nothing_measured_with_4(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for median, width in ((0.5, 0.01), (1.0, 0.5), (1.5, 0.01)):
        comparison = a_comparison(a_ratio("eager", median, width * median), fastest=("inductor", "eager"))
        engine.result = msgspec.structs.replace(FULL, comparison=comparison, findings=())
        assert main(["m.py", "--fail-on", "warning"]) == 0
    engine.result = a_diagnosis(a_trial("inductor"), a_failed_trial("eager"))
    assert main(["m.py"]) == 0
    skipped = a_trial("inductor", status="skipped", measurement=None, kernels=None, equivalence=None)
    engine.result = a_diagnosis(skipped, subject=a_subject(convolution_module_count=0))
    assert main(["m.py"]) == 0

    engine.result = a_diagnosis(a_failed_trial("eager"), a_failed_trial("inductor"))
    assert main(["m.py", "--output", str(tmp_path / "r.json")]) == 4
    assert "Nothing was measured" in capsys.readouterr().out
    assert load(tmp_path / "r.json") == engine.result


def test_standard_output_holds_the_report_only_and_standard_error_as_much_as_was_asked_for(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["m.py", "--format", "json"])
    captured = capsys.readouterr()

    assert msgspec.json.decode(captured.out.encode(), type=Diagnosis) == engine.result
    eager = "layoutdoctor: eager: converted per call: nothing\n"
    assert captured.err == f"layoutdoctor: [ 50 %] compiling: 1 of 2\n{eager}"

    main(["m.py", "-q"])
    assert capsys.readouterr().err == ""
    main(["m.py", "-v"])
    assert "layoutdoctor: version " in capsys.readouterr().err


HUNDRED = ",".join(map(str, range(1, 100)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m.py", "--configurations", "nhwc"], "cannot diagnose under configuration 'nhwc'"),
        (["m.py", "--fail-on", "LD999"], "cannot fail on 'LD999': expected error, warning or one of LD101"),
        (["m.py", "--budget", "0"], "cannot use '0' as seconds: expected a number above 0, such as 30; see layoutdoc"),
        (["m.py", "--budget", "nan"], "cannot use 'nan' as seconds"),
        (["m.py", "--budget", "soon"], "cannot use 'soon' as seconds"),
        (["m.py", "--output", "report.pdf"], "cannot tell the format of 'report.pdf': got suffix '.pdf'"),
        (["m.py", "--output", "missing/r.md"], "cannot write 'missing/r.md': there is no directory 'missing'"),
        (["m.py", "--output", "r.md", "--output", "./r.md"], "cannot write 'r.md' twice"),
        (["m.py", "--output", "folder.md"], "cannot write 'folder.md': it is a directory; name another file"),
        (["m.py", "--output", "there.md"], "cannot write 'there.md': it exists already; pass --force to replace it"),
        (["m.py", "--save-traces", "there.md"], "cannot save traces in 'there.md': File exists"),
        (["m.py", "--save-traces", "t", "--redact"], "with --redact: they hold the names of modules and files"),
        (["m.py", "--lower-for", "cuda:91"], "cannot lower for 'cuda:91': expected one of cuda:75, cuda:80, cu"),
        (["m.py", "--lower-for", "cuda:90", "--device", "cuda"], "cannot lower for cuda:90 with --device cuda"),
        (["m.py", "--package", "m.so"], "cannot keep a package in 'm.so': expected a file whose name ends in .pt2"),
        (["m.py", "--package", "there.pt2"], "cannot write 'there.pt2': it exists already"),
        (["m.py", "--package", "m.pt2", "--resume", "r"], "cannot use --package with --resume"),
        (["m.py", "n.py", "--package", "m.pt2"], "cannot use --package with 2 targets"),
        (["m.py", "n.py", "--output", "d.json"], "cannot use --output with 2 targets"),
        (["m.py", "n.py", "--threads", "1,2"], "cannot use several --threads with 2 targets: give one number, or"),
        (["m.py", "n.py", "--format", "html"], "cannot print 2 diagnoses as html: expected text, markdown, json"),
        (["diagonse", "m.py"], "cannot load 'diagonse': expected model.py, model.py:attr"),
        (["diagonse", "m.py"], "transformers:NAME or diffusers:CLASS; did you mean 'layoutdoctor diagnose'?"),
        (["--list", "nowhere.txt"], "cannot read the list 'nowhere.txt': No such file"),
        (["--quick"], "cannot start a diagnosis without a target: expected a TARGET such as model.py"),
        (["m.py", "--or"], "cannot use --or without inputs on both sides: expected --input SPEC --or --input SPEC"),
        (["m.py", "--input", "f32[1]", "--or", "--input", "f32[1]"], "cannot diagnose the same inputs twice"),
        (["m.py", "--threads", HUNDRED], "cannot diagnose 99 kinds of call: expected at most 64"),
        (["m.py", "--threads", "0"], "cannot use '0' threads: expected numbers from 1 on, such as 1,2,4"),
        (["m.py", "--threads", "1,2", "--weights", "1"], "cannot use 1 weights for 2 kinds of call: expected one for"),
        (["m.py", "--weights", "1"], "cannot use --weights for one kind of call"),
        (["m.py", "--threads", "1,2", "--save-traces", "x"], "cannot use --save-traces with several kinds of call"),
        (
            ["m.py", "--threads", "1,2", "--lower-for", "cuda:90"],
            "cannot make a policy for cuda:90",
        ),
        (
            ["m.py", "--threads", "1,2", "--format", "sarif"],
            "cannot print a policy as sarif: expected text",
        ),
        (["m.py", "--threads", "1,2", "--output", "x.html"], "cannot render a policy as 'html'"),
        (["m.py", "--trace", "other.py"], "unrecognized arguments: --trace other.py; see layoutdoctor --help"),
        (["rendr", "d.json"], "did you mean 'layoutdoctor render'?"),
        (["-q", "explian", "LD101"], "did you mean 'layoutdoctor explain'?"),
        (["explain", "LD999"], "cannot explain rule 'LD999': expected one of LD101"),
        (["explain", "LD101", "--all"], "cannot explain single rules and --all of them: leave out one of the two"),
        (["compare", "a", "b", "--output", "r.html"], "cannot render a comparison as 'html'"),
        (["render", "d.json", "--format", "junit"], "argument --format: cannot print 'junit': layoutdoctor writes no"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_refused_before_torch_is_touched(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "layoutdoctor.commands.running", None)  # importing it would raise
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "there.md").write_text("mine")
    (tmp_path / "there.pt2").write_text("mine")

    assert main(words) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert (tmp_path / "there.md").read_text() == "mine"
    assert not (tmp_path / "r.md").exists()


def test_a_stop_before_the_first_trial_saves_nothing(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.shown, engine.error = (), Interrupted(signal.SIGINT)

    assert main(["m.py", "-q", "--output", str(tmp_path / "r.json")]) == 130
    assert not (tmp_path / "r.json").exists()
    assert capsys.readouterr().err == "layoutdoctor: interrupted before the first configuration was ready\n"


def test_a_stop_prints_and_saves_what_was_measured_and_says_how_to_continue(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    engine.error = Interrupted(signal.SIGTERM)

    assert main(["m.py", "-q", "--output", str(path)]) == 128 + signal.SIGTERM

    captured = capsys.readouterr()
    assert "ended from outside (SIGTERM)" in captured.out
    assert captured.err.splitlines() == [
        "layoutdoctor: interrupted; the report holds what was measured until then",
        f"layoutdoctor: run again with: python -m layoutdoctor m.py -q --output {path} --force",
    ]
    assert load(path).interrupted == "ended from outside (SIGTERM)"


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
    assert load(tmp_path / "bug.json") == msgspec.structs.replace(PARTIAL, interrupted="ZeroDivisionError: a bug")


def test_one_that_is_the_same_as_another_is_named_so_before_that_has_compiled(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", kernels=None, measurement=None)
    engine.shown = recordings_of(a_diagnosis(a_trial("inductor"), same))[1:]
    main(["m.py"])

    names = shown_name("inductor-layout-opt-on"), shown_name("inductor")
    assert "layoutdoctor: {}: the same as {}\n".format(*names) in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--redact"]])
def test_a_failure_is_said_as_it_may_be_written(
    words: list[str], engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = Failure(kind="run", message="boom in /home/wilhelmina/x.py", location=a_location(9, "tumor_net.py"))
    engine.shown = recordings_of(a_diagnosis(msgspec.structs.replace(a_failed_trial("eager"), failure=failure)))
    main(["m.py", *words])

    said = capsys.readouterr().err
    assert "layoutdoctor: eager: failed (run)" in said
    assert "wilhelmina" not in said
    assert ("tumor" in said) is not bool(words)


@pytest.mark.parametrize(("status", "expected"), [("ok", 0), ("failed", 4), ("skipped", 4)])
def test_a_target_is_handed_on_and_needs_one_lowered_trial(
    engine: FakeEngine, tmp_path: Path, status: str, expected: int
) -> None:
    failure = None if status == "ok" else Failure(kind="target", message="nothing to lower")
    trial = a_trial(status=status, kernels=None, measurement=None, equivalence=None, is_static=True, failure=failure)
    engine.result = a_diagnosis(trial, subject=a_subject(device="cuda", target="cuda:90"))

    assert main(["m.py", "--lower-for", "cuda:90", "--save-traces", str(tmp_path / "traces")]) == expected
    assert (engine.asked.lower_for, engine.asked.device) == ("cuda:90", "cpu")
    assert engine.asked.trace_directory is None
    assert not (tmp_path / "traces").exists()


def test_processes_end_with_the_diagnosis_however_it_ends(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    monkeypatch.setattr("layoutdoctor.workers.launcher.close_kept_launcher", lambda: closed.append(engine.error))
    errors = (None, SubjectError("cannot run it"), Interrupted(signal.SIGINT))
    for error in errors:
        engine.error = error
        main(["m.py", "-q"])
        main(["m.py", "n.py", "-q"])

    assert closed == [error for error in errors for _ in range(2)]


def test_folders_stay_out_of_the_record() -> None:
    words = ["/home/me/secret/model.py:Net", "--output=/tmp/x/r.json", "--input", "f32[1, 3]"]

    assert command_without_folders(words) == "layoutdoctor model.py:Net --output=r.json --input 'f32[1, 3]'"
