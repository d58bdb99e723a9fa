"""Running a reproducer before it is handed out: what becomes of what it prints, and of one that fails or hangs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_subject, an_input, contiguous
from loops import for_each
from reproducer_builders import IMAGES, a_chain, a_record

from layoutdoctor.commands import reproduction
from layoutdoctor.commands.diagnose import _with_reproduction
from layoutdoctor.commands.output import OutputFile
from layoutdoctor.commands.reproduction import is_wanted, run_reproducer, with_reproduction
from layoutdoctor.diagnosis.records import Recipe, Reproduction

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.reproducer.report import Source


@for_each(
    ("script", "printed", "reproduced"),
    [
        ("print(1)\nprint('verdict: reproduced')", "1\nverdict: reproduced", True),
        ("import sys\nprint('verdict: NOT reproduced')\nsys.exit(1)", "verdict: NOT reproduced", False),
        (
            "print('verdict: nothing to compare with was recorded')",
            "verdict: nothing to compare with was recorded",
            None,
        ),
        ("raise SystemExit('no such layer')", "no such layer", None),
        ("import time\ntime.sleep(60)", "ended after 1 s", None),
        ("from model import NAME\nprint(NAME)", "from beside", None),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')", "\ufffd", None),
    ],
)
def test_what_a_script_does_is_told(script: str, printed: str, reproduced: bool | None, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("NAME = 'from beside'\n", encoding="utf-8")
    target = f"{tmp_path / 'model.py'}:Net"
    done = run_reproducer(script, "file", target, limit_seconds=1 if "sleep" in script else 60)

    assert done == Reproduction(source="file", printed=printed, reproduced=reproduced)


def a_diagnosis_of_a_file() -> Diagnosis:
    recipe = Recipe(kind="file", source="model.py", attribute="Model", made_by="call", inputs="get_inputs")
    return a_record(*a_chain(2), subject=a_subject(inputs=(an_input(contiguous(IMAGES)),), recipe=recipe))


@for_each(
    ("verdicts", "source"),
    [
        ({"operations": True}, "operations"),
        ({"operations": False, "file": True}, "file"),
        ({"operations": None, "file": True}, "file"),
        ({"operations": False, "file": False}, "operations"),
    ],
)
def test_the_first_that_shows_what_was_recorded_is_handed_out(verdicts: dict[Source, bool | None], source: str) -> None:
    asked = []

    def run(script: str, source: Source, target: str) -> Reproduction:
        asked.append(source)
        assert ("spec_from_file_location" in script) is (source == "file")
        return Reproduction(source=source, printed="", reproduced=verdicts[source])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "run_reproducer", run)
        diagnosis = with_reproduction(a_diagnosis_of_a_file(), "model.py")

    done = diagnosis.reproduction
    assert done is not None
    assert list(diagnosis.stage_seconds)[-1] == "running the reproducer"
    assert done.source == source
    assert asked == list(verdicts)


def test_it_is_run_for_reports_that_hold_it_only(tmp_path: Path) -> None:
    record = a_diagnosis_of_a_file()

    def wanted(report_format: str, diagnosis: Diagnosis = record) -> bool:
        return is_wanted([OutputFile(tmp_path / "x", report_format)], diagnosis)

    assert [name for name in ("json", "html", "markdown", "reproducer", "text") if wanted(name)] == [
        "markdown",
        "reproducer",
    ]
    assert not wanted("markdown", msgspec.structs.replace(record, trials=record.trials[:1]))


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
    record, outputs = a_diagnosis_of_a_file(), [OutputFile(tmp_path / "r.md", "markdown")]
    for stop, said in (
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "ended from outside (SIGTERM)"),
        (lambda: signal.raise_signal(signal.SIGINT), "interrupted from the keyboard"),
        (lambda: (tmp_path / "gone").read_text(), "No such file or directory"),
    ):
        monkeypatch.setattr(reproduction, "with_reproduction", lambda *_, stop=stop: stop() or time.sleep(10))

        assert _with_reproduction(record, outputs, "model.py", quiet=True) is record
        assert said in capsys.readouterr().err
