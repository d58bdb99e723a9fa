"""The reproducer is run, and what it prints is kept."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_subject
from reproducer_builders import a_record

from layoutdoctor.commands import reproducing
from layoutdoctor.commands.output import OutputFile
from layoutdoctor.commands.reproducing import run_reproducer, with_reproduction
from layoutdoctor.commands.signals import ending_signals
from layoutdoctor.diagnosis.diagnosis import Reproduction
from layoutdoctor.reports.markdown import markdown_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


@pytest.mark.parametrize(
    ("script", "printed", "reproduced"),
    [
        ("""print(1)\nprint('verdict')\nprint('{"reproduced": true}')""", "1\nverdict", True),
        ("""import sys\nprint('verdict')\nprint('{"reproduced": false}')\nsys.exit(1)""", "verdict", False),
        ("print('verdict: reproduced')", "verdict: reproduced", None),  # words are no verdict
        ("""print('verdict')\nprint('{"reproduced": "yes"}')""", """verdict\n{"reproduced": "yes"}""", None),
        ("raise SystemExit('no such layer')", "no such layer", None),
        ("import time\ntime.sleep(60)", "ended after 1 s", None),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')", "\ufffd", None),
    ],
)
def test_what_a_script_does_is_kept(script: str, printed: str, reproduced: bool | None) -> None:
    done = run_reproducer(script, limit_seconds=1 if "sleep" in script else 60)

    assert done == Reproduction(printed=printed, reproduced=reproduced)


def test_the_ratio_of_processes_that_give_memory_back_is_kept_and_stands_in_the_report() -> None:
    done = run_reproducer("""print('{"reproduced": true, "given_back": [1.1, 1.05, 1.2]}')""")

    assert done.given_back == (1.1, 1.05, 1.2)
    told = markdown_parts(a_record(reproduction=done), None)[0]
    assert "; 1.10x (1.05 to 1.20) in processes of the reproducer that give freed memory back." in told


def test_it_is_run_for_reports_that_hold_it_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = a_record()

    done = Reproduction(printed="verdict: reproduced", reproduced=True)
    monkeypatch.setattr(
        reproducing, "run_reproducer", lambda script, file: done if "torch.conv2d" in script and file is None else None
    )

    def run_for(report_format: str, diagnosis: Diagnosis = record) -> Diagnosis:
        return with_reproduction(diagnosis, [OutputFile(tmp_path / "x", report_format)], "m.py", quiet=True)

    names = [name for name in ("json", "html", "markdown", "reproducer", "text") if run_for(name) is not record]
    assert names == ["markdown", "reproducer"]
    unrunnable = msgspec.structs.replace(record, trials=record.trials[:1])
    assert run_for("markdown", unrunnable) is unrunnable
    diagnosis = run_for("markdown")
    assert (diagnosis.reproduction, list(diagnosis.stage_seconds)[-1]) == (done, "running the reproducer")


def test_a_script_that_takes_the_model_from_a_file_is_given_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = a_record(subject=a_subject(name="m.py"))
    without_text = msgspec.structs.replace(
        record, trials=tuple(msgspec.structs.replace(trial, traced=None) for trial in record.trials)
    )
    given: list[Path] = []
    done = Reproduction(printed="verdict", reproduced=True)
    monkeypatch.setattr(reproducing, "run_reproducer", lambda script, file: given.append(file) or done)
    outputs = [OutputFile(tmp_path / "r.py", "reproducer")]

    ran = with_reproduction(without_text, outputs, f"{tmp_path / 'm.py'}:Model", quiet=True)
    assert (ran.reproduction, given) == (done, [tmp_path / "m.py"])


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """SIGINT interrupts, also in tests that were started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_what_ends_it_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, outputs = a_record(), [OutputFile(tmp_path / "r.md", "markdown")]
    for stop, said in (
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "ended from outside (SIGTERM)"),
        (lambda: signal.raise_signal(signal.SIGINT), "interrupted from the keyboard"),
        (lambda: (tmp_path / "gone").read_text(), "No such file or directory"),
    ):
        monkeypatch.setattr(reproducing, "run_reproducer", lambda *_, stop=stop: stop() or time.sleep(10))

        with ending_signals():
            assert with_reproduction(record, outputs, "m.py", quiet=True) is record
        assert said in capsys.readouterr().err
