"""``--fail-on``, ``--accepted`` and ``--write-accepted`` on a saved diagnosis, on a trace, and on a model."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import builders
import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_location, a_trial

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

    from .conftest import FakeEngine


a_finding = partial(builders.a_finding, location=a_location(9, "/home/ada/net/model.py", "x = f(x)"))


FOUND = a_diagnosis(a_trial("inductor"), findings=(a_finding(), a_finding("LD103", severity="note", module="stem")))


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Diagnosis], str]:
    def write(diagnosis: Diagnosis) -> str:
        (tmp_path / "saved.json").write_bytes(to_json(diagnosis))
        return str(tmp_path / "saved.json")

    return write


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [("error", 0), ("warning", 1), ("LD101", 1), ("ld103", 1), ("LD205", 0), ("nothing", 2)],
)
def test_a_saved_diagnosis_can_fail(save: Callable[[Diagnosis], str], fail_on: str, status: int) -> None:
    assert main(["render", save(FOUND), "--fail-on", fail_on]) == status


def test_the_first_findings_that_failed_it_are_named_on_standard_error(
    save: Callable[[Diagnosis], str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["render", save(FOUND), "--fail-on", "warning"])

    lines = capsys.readouterr().err.splitlines()
    assert lines[-3] == "layoutdoctor: failed: 1 finding (--fail-on warning)"
    assert lines[-2] == ("  LD101 warning round-trip-conversion [inductor] <path>/model.py:9  body.1: 3 round trips")
    assert lines[-1].startswith(
        "layoutdoctor: to read about these findings: layoutdoctor explain LD101; to accept them: --write-"
    )

    many = tuple(a_finding(module=f"body.{number}") for number in range(25))

    main(["render", save(a_diagnosis(a_trial(), findings=many)), "--fail-on", "warning"])

    error = capsys.readouterr().err
    assert "failed: 25 findings" in error
    assert error.count("LD101 warning") == 20
    assert "  and 5 more\n" in error


def test_a_configuration_that_was_not_examined_is_named_and_nothing_recorded_is_no_pass(
    save: Callable[[Diagnosis], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", save(a_diagnosis(a_failed_trial("inductor", "g++ is missing"))), "--fail-on", "error"]) == 4
    assert (
        "layoutdoctor: warning: --fail-on error says nothing about inductor: it failed (compile): g++ is missing\n"
        in capsys.readouterr().err
    )
    bare = a_diagnosis(a_trial("inductor", kernels=None))
    assert main(["render", save(bare), "--fail-on", "error"]) == 4
    assert main(["render", save(bare)]) == 0


def test_accepted_findings_do_not_fail_and_new_ones_do(
    save: Callable[[Diagnosis], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = str(tmp_path / "accepted.json")
    assert main(["render", save(FOUND), "--write-accepted", accepted, "--fail-on", "warning"]) == 0
    assert "accepted.json: it accepts 2 findings; fill in the reasons\n" in capsys.readouterr().err

    assert main(["render", save(FOUND), "--accepted", accepted, "--fail-on", "warning"]) == 0
    assert f"layoutdoctor: 2 findings accepted by {accepted}\n" in capsys.readouterr().err

    more = msgspec.structs.replace(FOUND, findings=(*FOUND.findings, a_finding("LD205", module="head")))
    assert main(["render", save(more), "--accepted", accepted, "--fail-on", "warning"]) == 1
    assert "failed: 1 finding (--fail-on warning)\n  LD205 warning" in capsys.readouterr().err


def test_entries_that_accept_nothing_any_more_are_named(
    save: Callable[[Diagnosis], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accepted.json"
    main(["render", save(FOUND), "--write-accepted", str(path)])
    capsys.readouterr()

    main(["render", save(a_diagnosis(a_trial("inductor"))), "--accepted", str(path)])

    assert capsys.readouterr().err == (
        f"layoutdoctor: 2 accepted findings gone, to be removed from {path}: "
        "LD101 [inductor] model.py body.1 and LD103 [inductor] model.py stem\n"
    )
    content = json.loads(path.read_text())
    content["accepted"][0]["until"] = "2020-01-01"
    content["accepted"][1]["evidence_count"] = 0
    path.write_text(json.dumps(content))
    grown = msgspec.structs.replace(
        FOUND, findings=(a_finding("LD103", severity="note", module="stem", evidence=("a",)),)
    )

    assert main(["render", save(grown), "--accepted", str(path), "--fail-on", "LD103"]) == 1

    error = capsys.readouterr().err
    assert f"1 accepted finding past the last day in {path}: LD101 [inductor] model.py body.1\n" in error
    assert f"1 accepted finding with more evidence than {path} accepts: LD103 [inductor] model.py stem\n" in error


def test_redacted_reports_name_no_module_in_the_log(
    save: Callable[[Diagnosis], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = a_diagnosis(a_trial(), findings=(a_finding(module="moonshot_encoder.proj"),))
    accepted = tmp_path / "accepted.json"
    assert main(["render", save(secret), "--write-accepted", str(accepted), "--redact"]) == 2
    assert main(["render", save(secret), "--write-accepted", str(accepted)]) == 0
    capsys.readouterr()

    assert main(["render", save(secret), "--fail-on", "warning", "--redact"]) == 1
    assert main(["render", save(a_diagnosis(a_trial())), "--accepted", str(accepted), "--redact"]) == 0

    assert "moonshot" not in "".join(capsys.readouterr())


def test_an_existing_file_needs_force_keeps_its_reasons_and_is_not_replaced_if_it_holds_something_else(
    save: Callable[[Diagnosis], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accepted.json"
    main(["render", save(FOUND), "--write-accepted", str(path)])
    path.write_text(path.read_text().replace('"reason": ""', '"reason": "known"'))
    before = path.read_text()

    assert main(["render", save(FOUND), "--write-accepted", str(path)]) == 2
    assert "it exists already; pass --force to replace it" in capsys.readouterr().err
    assert path.read_text() == before

    assert main(["render", save(FOUND), "--write-accepted", str(path), "--force"]) == 0
    assert path.read_text() == before

    path = tmp_path / "notes.json"
    path.write_text("my notes")

    assert main(["render", save(FOUND), "--write-accepted", str(path), "--force"]) == 3
    assert path.read_text() == "my notes"


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--accepted", "/dev/null"], 3, "cannot read '/dev/null': it is a pipe or a device"),
        (["--accepted", "none.json"], 3, "cannot read 'none.json': No such file"),
        (["--write-accepted", "no/folder/a.json"], 2, "there is no directory"),
        (["--write-accepted", "r.json", "--output", "r.json"], 2, "cannot write 'r.json' twice"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_measured(
    options: list[str],
    status: int,
    message: str,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    engine.error = AssertionError("it was asked for a diagnosis")

    assert main(["m.py", "-q", *options]) == status
    assert message in capsys.readouterr().err
