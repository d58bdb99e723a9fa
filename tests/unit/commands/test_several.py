"""Several targets in one call: one table, in their order; a failure is a row, and nothing of it says who and where."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

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

from layoutdoctor.__main__ import main
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.diagnosis.accepted import accept_all, save_accepted
from layoutdoctor.diagnosis.trial import Equivalence
from layoutdoctor.errors import SubjectError
from layoutdoctor.privacy import scrub

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.workers.messages import Request

FASTER = a_diagnosis(
    a_trial("inductor", graphs=[a_graph(breakers=(a_breaker(),))]),
    a_trial("inductor-channels-last"),
    comparison=a_comparison(a_ratio("inductor-channels-last", 1.5)),
    recommendation=a_recommendation("inductor-channels-last"),
    findings=(a_finding("LD205", severity="warning"),),
)
NOTHING = a_diagnosis(a_failed_trial("inductor"), a_failed_trial("eager"))


class Doctor:
    """Stands for the engine: gives what the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.results: dict[str, Diagnosis | BaseException] = {"a.py": FASTER, "b.py": NOTHING}
        self.asked: list[tuple[str, str | None]] = []

    def __call__(self, request: Request, conclusion: Conclusion, resume: str | None) -> Doctor:
        assert request.configurations
        self.asked.append((str(request.target), resume))
        return self

    def diagnose(self, *, quiet: bool) -> Diagnosis:
        target = self.asked[-1][0]
        found = self.results.get(target, SubjectError(f"cannot load {target}: no\nsuch file"))
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    stand_in = Doctor()
    monkeypatch.setattr("layoutdoctor.commands.running.Running", stand_in)
    return stand_in


def test_all_are_in_one_table_in_their_order(
    doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "zoo.txt"
    listed.write_text("# three more\n\nb.py  # twice\nc.py\nb.py\n", encoding="utf-8")
    trial = a_trial("inductor", equivalence=Equivalence(status="different"))
    doctor.results["d.py"] = a_diagnosis(trial, comparison=a_comparison(), recommendation=a_recommendation(None))
    assert main(["a.py", "d.py", "--list", str(listed), "--resume", str(tmp_path / "kept")]) == 3
    out, err = capsys.readouterr()
    kept = [str(tmp_path / "kept" / name) for name in ("a.py", "d.py", "b.py", "c.py")]
    assert doctor.asked == list(zip(("a.py", "d.py", "b.py", "c.py"), kept, strict=True))
    head, *rows = out.splitlines()
    assert head.split("  ")[0] == "model"
    assert "compiled + channels_last" in rows[0]
    assert "instance_norm" in rows[0]
    assert [" ".join(row.split()) for row in rows[1:]] == [
        "d.py - - outputs of the default differ -",
        "b.py - - nothing compared -",
        "c.py cannot load c.py: no",
    ]
    assert "layoutdoctor: c.py (4 of 4)\nlayoutdoctor: c.py: cannot load c.py: no\n" in err


def test_markdown_and_json_hold_those_that_failed_too(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    del doctor
    main(["a.py", "c.py", "--format", "markdown"])
    assert capsys.readouterr().out.startswith("| model")
    main(["a.py", "b.py", "c.py", "--format", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert [len(one["trials"]) for one in shown[:2]] == [2, 2]
    assert shown[2] == {
        "target": "c.py",
        "failure": {
            "kind": "SubjectError",
            "message": "cannot load c.py: no",
            "log": None,
            "location": None,
            "cause": None,
        },
    }


@pytest.mark.parametrize("words", [[], ["--format", "markdown"], ["--format", "json"]])
def test_nothing_leaves_unscrubbed_or_with_redact_unredacted(
    words: list[str], doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, other = "/home/wilhelmina/tumor_net.py", "/home/quinella/tumor_net.py"
    doctor.results |= {secret: SubjectError(f"cannot load {secret}: password=hunter2x7 in lesion_stem"), other: FASTER}

    main([secret, other, *words])
    assert not {"wilhelmina", "quinella", "hunter2x7"} & set(capsys.readouterr().out.replace("/", " ").split())
    main([secret, other, "--redact", *words])
    out, err = capsys.readouterr()
    assert "tumor" not in out
    assert "lesion" not in out
    assert "hunter2x7" not in out + err


def test_an_interruption_shows_the_rows_so_far(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.results["b.py"] = Interrupted(signal.SIGINT)
    assert main(["a.py", "b.py"]) == 130
    out, err = capsys.readouterr()
    assert err.endswith("layoutdoctor: interrupted; 1 of 2 are done; --resume DIR would keep them\n")
    assert "compiled + channels_last" in out


def test_accepted_findings_fail_no_table(doctor: Doctor, tmp_path: Path) -> None:
    doctor.results["b.py"] = FASTER
    accepted = tmp_path / "accepted.json"
    words = ["a.py", "b.py", "--fail-on", "warning"]
    assert main(words) == 1
    save_accepted(accepted, accept_all(scrub(FASTER)))
    assert main([*words, "--accepted", str(accepted)]) == 0


def test_the_worst_status_is_that_of_all(doctor: Doctor) -> None:
    del doctor
    assert main(["a.py", "b.py"]) == 4
    assert main(["a.py", "b.py", "--fail-on", "warning"]) == 1
    assert main(["a.py", "b.py", "c.py", "--fail-on", "warning"]) == 3
