"""Every row of the table, run: what is reported, what is kept, what is left behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from faults import harness, surroundings
from faults.fault import ROWS, Fault
from faults.harness import RECORD, Workplace
from faults.in_python import diagnose_in_python
from faults.page import render_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from faults.harness import Ended

SCHEMA = json.loads((Path(__file__).parents[1] / "diagnosis.schema.json").read_text(encoding="utf-8"))
BUDGET = ("--budget", "0.2")
FOLDER = "folder"
PAGE = Path(__file__).with_name("README.md")
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
    rows = [fault for fault in chosen if isinstance(fault, Fault) and fault.way == "command"]
    pool = ThreadPoolExecutor(COMMANDS_AT_ONCE)
    try:
        yield {row.name: pool.submit(run_row, row, tmp_path_factory.mktemp(row.name), cache) for row in rows}
    finally:
        pool.shutdown(cancel_futures=True)


def marked(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.is_slow else pytest.mark.smoke]
    if "inductor" in fault.configurations:
        marks.append(pytest.mark.compile)
    return pytest.param(fault, id=fault.name, marks=marks)


@pytest.mark.parametrize("fault", [marked(fault) for fault in ROWS if fault.way == "command"])
def test_the_command(fault: Fault, runs: Runs) -> None:
    first, *more = runs[fault.name].result()
    check(fault, first)
    for ended in more:
        check(fault.when_resumed if fault.is_resumed else fault, ended)


@pytest.mark.parametrize("fault", [marked(fault) for fault in ROWS if fault.way != "command"])
def test_in_python(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Workplace(tmp_path, tmp_path / "cache")
    place.write_model(fault.model_source)
    check(fault, diagnose_in_python(fault, place, monkeypatch))


def run_row(fault: Fault, folder: Path, cache: Path) -> list[Ended]:
    """Every command of a row: the first, those beside it, and the one that continues it."""
    if fault.at_once > 1:
        cache = folder / "cache"
    places = [Workplace(folder / str(number), cache) for number in range(fault.at_once)]
    for place in places:
        place.write_model(fault.model_source)
        if fault.surroundings:
            getattr(surroundings, fault.surroundings)(place)
    with ThreadPoolExecutor(fault.at_once) as pool:
        ended = list(pool.map(partial(run_command, fault), places))
    if fault.is_resumed:
        ended.append(run_command(fault, places[0], resumed=True))
    return ended


def run_command(fault: Fault, place: Workplace, *, resumed: bool = False) -> Ended:
    """The command of a row; a second time, it continues the first."""
    words = ["model.py", "--configurations", fault.configurations, *BUDGET, *shlex.split(fault.options)]
    if fault.is_resumed:
        words += ["--resume", FOLDER]
    if "--output" not in words:
        words += ["--output", RECORD]
    return place.run(
        words + (["--force"] if resumed else []),
        within_seconds=fault.within_seconds,
        environment={
            name: value.format(work=place.work, root=harness.ROOT) for name, value in fault.environment.items()
        },
        limits=fault.limits,
        shell_tail=fault.shell_tail,
        prefix=shlex.split(fault.prefix),
        interrupt=partial(send, fault.interrupt) if fault.interrupt and not resumed else None,
    )


def send(signals: str, process: subprocess.Popen[bytes]) -> None:
    """Signals one after the other: an interrupt to the whole group, as a terminal sends it, others to the command."""
    for name in signals.split(","):
        number = signal.Signals[name]
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def check(fault: Fault, ended: Ended) -> None:
    """The whole row."""
    assert says(fault.says, ended.text), f"expected {fault.says!r} in:\n{ended.said[-3000:]}\n{ended.output[-3000:]}"
    check_kept(ended, fault.status, fault.expected_trials)
    timed = {trial.name for trial in ended.diagnosis.trials if trial.measurement} if ended.diagnosis else set()
    assert timed == fault.expected_times
    assert [name for name in fault.keeps if not (ended.folder / name).is_file()] == []
    check_left(ended, fault)


def check_kept(ended: Ended, status: int, trials: dict[str, str]) -> None:
    """Exit status, and a record with what was finished."""
    assert ended.status == status, f"{ended.said[-3000:]}\n{ended.output[-3000:]}"
    assert ended.statuses == trials, f"{ended.said[-3000:]}\n{ended.output[-3000:]}"
    if ended.diagnosis is not None:
        jsonschema.validate(json.loads(ended.record_text), SCHEMA)


def check_left(ended: Ended, fault: Fault) -> None:
    """No process, no temporary file, no half-written output, no traceback of our own."""
    assert ended.processes == (), ended.processes
    assert [name for name in ended.temporary if not name.startswith(fault.leaves)] == [], ended.temporary
    assert set(ended.files) <= {RECORD, *fault.leaves, "struck", "reached"}, ended.files
    assert fault.shows_traceback or "Traceback (most recent call last)" not in ended.said, ended.said


def says(expected: str, text: str) -> bool:
    """Whether the parts of the expected sentence stand in the text, in that order."""
    parts = (re.escape(" ".join(part.split())) for part in expected.split(" ... "))
    return re.search(".*?".join(parts), text) is not None


def test_names_are_given_once() -> None:
    names = [row.name for row in ROWS]

    assert len(set(names)) == len(names) >= 35


def test_the_page_says_what_is_tested(update_golden: bool) -> None:
    if update_golden:
        PAGE.write_text(render_page(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == render_page(), "run the tests with --update-golden, review the change"


def test_a_process_that_is_left_is_found_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "GRACE_SECONDS", 0.2)
    command = ["sh", "-c", "echo; read line"]
    environment = {**os.environ, harness.MARKER: "planted"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        left.stdout.readline()  # it runs: until then the system may not know its environment yet
        found = harness.processes_left("planted")
        harness.end_processes("planted")

    assert found == ["sh -c echo; read line "]
    assert left.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("expected", "is_said"),
    [("", True), ("a b", True), ("a ... d", True), ("d ... a", False), ("a d", False), ("a.c", False)],
)
def test_what_is_said_is_looked_for_word_for_word(expected: str, is_said: bool) -> None:
    assert says(expected, "a b c d") == is_said
