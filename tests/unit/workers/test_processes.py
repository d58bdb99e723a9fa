"""Processes that are ended, and the variables that a process is given that is to be timed beside other programs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from layoutdoctor.workers.processes import cores_in_use, kill_with_all_it_started
from layoutdoctor.workers.settling import short_waits


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_wait_briefly_beside_other_programs_unless_the_user_has_chosen_how_they_wait(chosen: str) -> None:
    assert short_waits({"PATH": "/bin"}, lambda: 0.9) == {"GOMP_SPINCOUNT": "10000"}
    assert short_waits({chosen: "1"}, lambda: 0.9) == {}


@pytest.mark.parametrize("cores", [None, 0.0, 0.3])
def test_on_a_quiet_machine_threads_wait_as_in_the_users_own_process(cores: float | None) -> None:
    assert short_waits({"PATH": "/bin"}, lambda: cores) == {}


def test_a_busy_child_of_this_process_counts_as_well() -> None:
    """A loader of data is one: threads that are timed lose their processor to it like to any other program."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.read(1)
            found = [cores_in_use() or 0.0 for _ in range(3)]
        finally:
            busy.kill()
    assert max(found) > 0.5


def test_what_a_killed_compiler_has_not_finished_is_deleted_and_no_other_file(tmp_path: Path) -> None:
    """A linker's output is empty until it ends; Inductor loads whatever lies under that name."""
    files = {name: tmp_path / f"{name}.so" for name in ("g++", "clang++-18", "sort")}
    for name in files:
        (tmp_path / name).write_text("#!/bin/sh\ntrap '' TERM\n: > $2\nwhile :; do sleep 0.05; done\n")
        (tmp_path / name).chmod(0o755)
    starts = " & ".join(f"./{name} -o {name}.so" for name in files)
    with subprocess.Popen(["/bin/sh", "-c", f"{starts} & wait"], cwd=tmp_path) as shell:
        end = time.monotonic() + 10
        while not all(file.exists() for file in files.values()) and time.monotonic() < end:
            time.sleep(0.01)
        kill_with_all_it_started(shell.pid)

    assert [name for name, file in files.items() if file.exists()] == ["sort"]
