"""
Every row of the table of faults, run: what is reported, what is kept, what is left behind.

In every row: the command ends in time; no process of the run is alive afterwards; no temporary file, lock or
half-written output is left; what is saved is a valid diagnosis; nobody sees a traceback of layoutdoctor's own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from faults import harness
from faults.fault import ROWS, Fault
from faults.harness import RECORD, Workplace

if TYPE_CHECKING:
    from faults.harness import Ended

SCHEMA = json.loads((Path(__file__).parents[1] / "diagnosis.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compiler cache serves all rows that do not plant a fault in it, so that kernels are compiled once."""
    return tmp_path_factory.mktemp("cache")


def marked(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.is_slow else pytest.mark.smoke]
    if "inductor" in fault.configurations:
        marks.append(pytest.mark.compile)
    return pytest.param(fault, id=fault.name, marks=marks)


@pytest.mark.parametrize("fault", [marked(fault) for fault in ROWS])
def test_a_run_with_a_fault_ends_as_its_row_says(fault: Fault, tmp_path: Path, cache: Path) -> None:
    place = Workplace(fault, tmp_path / "place", cache)

    check(fault, place.run())
    if fault.is_resumed:
        check(fault.when_resumed, place.run(resumed=True))


def check(fault: Fault, ended: Ended) -> None:
    """The whole row."""
    printed = f"{ended.said[-3000:]}\n{ended.output[-3000:]}"
    assert ended.status == fault.status, printed
    words = [re.escape(" ".join(part.split())) for part in fault.says.split(" ... ")]
    assert re.search(".*?".join(words), ended.text), printed
    trials = ended.diagnosis.trials if ended.diagnosis is not None else ()
    assert ", ".join(f"{trial.name} {trial.status}" for trial in trials) == fault.trials, printed
    assert ", ".join(trial.name for trial in trials if trial.measurement) == fault.timed
    if ended.diagnosis is not None:
        jsonschema.validate(json.loads(ended.record_text), SCHEMA)
    assert ended.processes == []
    assert [name for name in ended.temporary if not name.startswith(fault.leaves)] == []
    assert set(ended.files) <= {RECORD, *fault.leaves, "struck", "reached"}
    assert "Traceback (most recent call last)" not in ended.said, ended.said


def test_a_process_that_is_left_is_found_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "GRACE_SECONDS", 0.2)
    command = ["sh", "-c", "echo; read line"]
    environment = {**os.environ, harness.MARKER: "planted"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        left.stdout.readline()  # it runs: until then the system may not know its environment yet
        found = harness.processes_left("planted")
        harness.end_processes("planted")

    assert [process.pid for process in found] == [left.pid]
    assert left.returncode == -signal.SIGKILL
