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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from faults import harness
from faults.fault import ROWS, Fault
from faults.harness import RECORD, Workplace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from faults.harness import Ended

SCHEMA = json.loads((Path(__file__).parents[1] / "diagnosis.schema.json").read_text(encoding="utf-8"))
COMMANDS_AT_ONCE = int(os.environ.get("FAULTS_AT_ONCE", "2"))
Runs = dict[str, "Future[list[Ended]]"]


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """
    What the commands of all chosen rows gave, two at a time: most of a row is waiting for one processor.

    One compiler cache serves all rows that do not plant a fault in it, so that kernels are compiled once.
    """
    cache = tmp_path_factory.mktemp("cache")
    chosen = [item.callspec.params.get("fault") for item in request.session.items if hasattr(item, "callspec")]
    rows = [fault for fault in chosen if isinstance(fault, Fault)]
    pool = ThreadPoolExecutor(COMMANDS_AT_ONCE)
    try:
        yield {row.name: pool.submit(run_row, row, tmp_path_factory.mktemp(row.name), cache) for row in rows}
    finally:
        pool.shutdown(cancel_futures=True)


def run_row(fault: Fault, folder: Path, cache: Path) -> list[Ended]:
    """The command of a row, and the one that continues it."""
    place = Workplace(fault, folder / "place", cache)
    return [place.run(), *([place.run(resumed=True)] if fault.is_resumed else [])]


def marked(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.is_slow else pytest.mark.smoke]
    if "inductor" in fault.configurations:
        marks.append(pytest.mark.compile)
    return pytest.param(fault, id=fault.name, marks=marks)


@pytest.mark.parametrize("fault", [marked(fault) for fault in ROWS])
def test_the_command(fault: Fault, runs: Runs) -> None:
    for row, ended in zip((fault, fault.when_resumed), runs[fault.name].result(), strict=False):
        check(row, ended)


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
