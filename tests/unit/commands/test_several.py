"""Several targets in one call: one table, in their order; what fails is a row, what is done is not done again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import (
    a_breaker,
    a_comparison,
    a_diagnosis,
    a_failed_trial,
    a_finding,
    a_graph,
    a_ratio,
    a_recommendation,
    a_trial,
)
from loops import for_each

from layoutdoctor.__main__ import main
from layoutdoctor.commands import diagnose as diagnose_module
from layoutdoctor.commands.diagnose import _command_of
from layoutdoctor.commands.running import Running
from layoutdoctor.diagnosis.records import Equivalence
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.errors import SubjectError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Diagnosis

FASTER = a_diagnosis(
    a_trial("inductor", graphs=[a_graph(breakers=(a_breaker(),))]),
    a_trial("inductor-channels-last"),
    comparison=a_comparison(a_ratio("inductor-channels-last", 1.5)),
    recommendation=a_recommendation("inductor-channels-last"),
)
NOTHING = a_diagnosis(a_failed_trial("inductor"), a_failed_trial("eager"))


class Doctor:
    """Stands for the engine: gives what the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.results: dict[str, Diagnosis | BaseException] = {"a.py": FASTER, "b.py": NOTHING}
        self.asked: list[str] = []

    def __call__(self, arguments: argparse.Namespace, running: Running) -> Diagnosis:
        assert isinstance(running, Running)
        self.asked.append(arguments.target)
        found = self.results.get(arguments.target, SubjectError(f"cannot load {arguments.target}: no\nsuch file"))
        if isinstance(found, BaseException):
            raise found
        environment = msgspec.structs.replace(found.environment, command=_command_of(arguments))
        return msgspec.structs.replace(found, environment=environment)


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    stand_in = Doctor()
    monkeypatch.setattr(diagnose_module, "_diagnose_one", stand_in)
    return stand_in


def test_all_are_in_one_table_in_their_order(
    doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "zoo.txt"
    listed.write_text("# three more\n\nb.py  # twice\nc.py\nb.py\n", encoding="utf-8")
    assert main(["a.py", "--list", str(listed)]) == 3
    out, err = capsys.readouterr()
    assert doctor.asked == ["a.py", "b.py", "c.py"]
    head, *rows = out.splitlines()
    assert head.split("  ")[0] == "model"
    assert [row.split()[0] for row in rows] == ["a.py", "b.py", "c.py"]
    assert "compiled + channels_last" in rows[0]
    assert "instance_norm" in rows[0]
    assert rows[1].split(maxsplit=1)[1].split("  ")[-2:] == ["nothing compared", "-"]
    assert rows[2].endswith("cannot load c.py: no")
    assert [line for line in err.splitlines() if " of 3)" in line] == [
        f"layoutdoctor: {name} ({number} of 3)" for number, name in enumerate(doctor.asked, 1)
    ]


def test_a_model_whose_outputs_all_differ_has_nothing_to_be_used(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = a_trial("inductor", equivalence=Equivalence(status="different"))
    doctor.results["a.py"] = a_diagnosis(trial, comparison=a_comparison(), recommendation=a_recommendation(None))
    main(["a.py", "b.py"])
    row = ["a.py", "-", "-", "outputs", "of", "the", "default", "differ", "-"]
    assert capsys.readouterr().out.splitlines()[1].split() == row


def test_markdown_and_json(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    del doctor
    main(["a.py", "b.py", "--format", "markdown"])
    assert capsys.readouterr().out.startswith("| model")
    main(["a.py", "b.py", "c.py", "--format", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert [len(one["trials"]) for one in shown] == [2, 2]


def test_what_is_done_is_not_done_again(doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["a.py", "b.py", "--resume", str(tmp_path)]
    doctor.results["b.py"] = KeyboardInterrupt()
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert "1 of 2 are done" in err
    assert "compiled + channels_last" in out
    assert load(tmp_path / "a.py.json").environment.command == "layoutdoctor a.py"

    doctor.results["b.py"] = NOTHING
    main(words)
    assert doctor.asked == ["a.py", "b.py", "b.py"]
    assert "taken from a.py.json" in capsys.readouterr().err
    main([*words, "--mode", "training"])
    assert doctor.asked[3:] == ["a.py", "b.py"]


@for_each(
    ("words", "sentence"),
    [
        (["a.py", "b.py", "--output", "d.json"], "cannot use --output with 2 targets"),
        (["a.py", "b.py", "--module", "vae"], "cannot use --module with 2 targets"),
        (["a.py", "b.py", "--format", "html"], "cannot write several diagnoses as html"),
        (["a.py", "b.py", "--configurations", "eagr"], "configuration 'eagr'"),
        (["a.py", "b.py", "--fail-on", "LD9"], "cannot fail on 'LD9'"),
        (["diagonse", "a.py"], "cannot load 'diagonse': expected model.py, model.py:attr"),
        (["diagonse", "a.py"], "did you mean 'layoutdoctor diagnose'?"),
        (["--list", "nowhere.txt"], "cannot read the list 'nowhere.txt': No such file"),
        (["--quick"], "cannot diagnose nothing: expected a TARGET such as model.py"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_runs(
    words: list[str], sentence: str, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert doctor.asked == []


def test_the_worst_status_is_that_of_all(doctor: Doctor) -> None:
    doctor.results["a.py"] = msgspec.structs.replace(FASTER, findings=(a_finding("LD205", severity="warning"),))
    assert main(["a.py", "b.py"]) == 4
    assert main(["a.py", "b.py", "--fail-on", "warning"]) == 1
    assert main(["a.py", "b.py", "c.py", "--fail-on", "warning"]) == 3
