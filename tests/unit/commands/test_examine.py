"""``examine`` and ``--save-recordings``: saved recordings on the command line."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import msgspec
import pytest
from recorded_builders import a_recording

from layoutdoctor.__main__ import main
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.recording.saved import load_recording, pack, save_recording
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.recording.recording import Recording

    from .conftest import FakeEngine

LATER = "2026-11-21T00:00:00Z"


def later(recording: Recording) -> Recording:
    return msgspec.structs.replace(recording, head=msgspec.structs.replace(recording.head, created_at=LATER))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    save_recording(a_recording(), tmp_path / "there" / "eager.recording")
    return tmp_path / "there"


def test_a_recording_makes_the_report_of_its_diagnosis(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["examine", str(folder / "eager.recording"), "--output", str(tmp_path / "d.json")]

    assert main(words) == 0

    assert "LD501" in capsys.readouterr().out
    assert load(tmp_path / "d.json") == diagnose_recordings([a_recording()])
    assert main(["examine", str(folder), "--fail-on", "note"]) == 2
    assert main(["examine", str(folder), "--fail-on", "LD501"]) == 1
    assert main([*words]) == 2  # it exists already


def test_recordings_of_several_diagnoses_make_a_report_each(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "deeper").mkdir()
    save_recording(later(a_recording()), folder / "deeper" / "eager.recording")

    assert main(["examine", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["examine", str(folder)]) == 0
    text = capsys.readouterr().out

    assert {diagnosis["created_at"] for diagnosis in found} == {a_recording().head.created_at, LATER}
    assert text.count("layoutdoctor explain LD501") == 2
    assert main(["examine", str(folder), "--output", str(tmp_path / "d.json")]) == 2
    err = capsys.readouterr().err
    assert "cannot write one file for 2 diagnoses" in err
    assert "examine one file at a time" in err


def test_a_broken_one_is_named_and_the_others_are_examined_if_there_are_any(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "another.recording").write_bytes((folder / "eager.recording").read_bytes()[:-100])
    (folder / "report.json").write_bytes(b"not looked at")

    assert main(["examine", str(folder)]) == 0

    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("layoutdoctor: error: cannot read ")
    assert line.endswith("another.recording': it is cut off or damaged; copy or record it again")
    assert "LD501" in captured.out

    (folder / "eager.recording").write_bytes(b"")
    (folder / "empty").mkdir()

    assert main(["examine", str(folder / "empty"), str(folder / "eager.recording")]) == 3

    (line,) = capsys.readouterr().err.splitlines()
    assert "no file in it ends in .recording; name a folder of recordings, or a recording; " in line
    assert line.endswith("it is empty; expected what --save-recordings wrote (NAME.recording)")


def test_a_diagnosis_keeps_its_recordings_where_it_is_told_to(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.shown = [a_recording()]
    directory = tmp_path / "new" / "recordings"
    words = ["m.py", "--configurations", "eager", "--save-recordings", str(directory)]

    assert main(words) == 0
    assert pack(load_recording(directory / "eager.recording")) == pack(a_recording())

    capsys.readouterr()
    assert main(words) == 2
    assert "'eager.recording' is there already; pass --force to replace it" in capsys.readouterr().err
    engine.error = Interrupted(signal.SIGINT)
    assert main([*words, "--force"]) == 130
    assert load_recording(directory / "eager.recording").head.interrupted == "interrupted from the keyboard"
    capsys.readouterr()
    assert main([*words, "--force", "--redact"]) == 2
    assert "they hold the names of modules and files" in capsys.readouterr().err
    assert main([*words[:-1], str(directory / "eager.recording")]) == 2
    assert "cannot save recordings in " in capsys.readouterr().err
