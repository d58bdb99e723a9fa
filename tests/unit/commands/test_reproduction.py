"""Running a reproducer before it is handed out: what becomes of what it prints, and of one that fails or hangs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from loops import for_each
from reproducer_builders import a_record

from layoutdoctor.commands import running
from layoutdoctor.commands.diagnose import _with_reproduction
from layoutdoctor.commands.output import OutputFile
from layoutdoctor.commands.running import is_reproducer_wanted, run_reproducer, with_reproduction
from layoutdoctor.diagnosis.diagnosis import Reproduction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


@for_each(
    ("script", "printed", "reproduced"),
    [
        ("print(1)\nprint('verdict: reproduced')", "1\nverdict: reproduced", True),
        ("import sys\nprint('verdict: NOT reproduced')\nsys.exit(1)", "verdict: NOT reproduced", False),
        ("raise SystemExit('no such layer')", "no such layer", None),
        ("import time\ntime.sleep(60)", "ended after 1 s", None),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')", "\ufffd", None),
    ],
)
def test_what_a_script_does_is_kept(script: str, printed: str, reproduced: bool | None) -> None:
    done = run_reproducer(script, limit_seconds=1 if "sleep" in script else 60)

    assert done == Reproduction(printed=printed, reproduced=reproduced)


def test_it_is_run_for_reports_that_hold_it_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = a_record()

    def wanted(report_format: str, diagnosis: Diagnosis = record) -> bool:
        return is_reproducer_wanted([OutputFile(tmp_path / "x", report_format)], diagnosis)

    names = [name for name in ("json", "html", "markdown", "reproducer", "text") if wanted(name)]
    assert names == ["markdown", "reproducer"]
    assert not wanted("markdown", msgspec.structs.replace(record, trials=record.trials[:1]))

    done = Reproduction(printed="verdict: reproduced", reproduced=True)
    monkeypatch.setattr(running, "run_reproducer", lambda script: done if "torch.conv2d" in script else None)
    diagnosis = with_reproduction(record)
    assert (diagnosis.reproduction, list(diagnosis.stage_seconds)[-1]) == (done, "running the reproducer")


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
        monkeypatch.setattr(running, "with_reproduction", lambda _, stop=stop: stop() or time.sleep(10))

        assert _with_reproduction(record, outputs, quiet=True) is record
        assert said in capsys.readouterr().err
