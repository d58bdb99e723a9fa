"""Copies of a process that has loaded a model: what they run, how they end, and what starts from nothing instead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders import a_configuration

from layoutdoctor.errors import SubjectError
from layoutdoctor.isolation.fork_server import ForkServer
from layoutdoctor.isolation.messages import Request
from layoutdoctor.isolation.timed_process import TimedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

EAGER = a_configuration("eager", backend="eager")
# A model that tells, in its folder, which process runs it and with how many threads. What its file runs when it is
# loaded is work for all threads.
TELLS = """told = f"{loaded_by} {os.getppid()} {torch.get_num_threads()}"
        pathlib.Path(__file__).with_name(str(os.getpid())).write_text(told)"""
MODEL = """
import os, pathlib, torch
PREPARE
large = torch.zeros(2**22) + 1
loaded_by = os.getpid()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 3)
    def forward(self, x):
        TELLS
        return self.conv(x) + (large * 2).mean()
model = Model()
example_input = torch.randn(1, 8, 64, 64)
"""


def written(path: Path, prepare: str, tells: str = TELLS) -> Path:
    path.write_text(MODEL.replace("PREPARE", prepare).replace("TELLS", tells), encoding="utf-8")
    return path


@contextmanager
def server_of(folder: Path, prepare: str = "") -> Iterator[ForkServer]:
    path = written(folder / "model.py", prepare)
    with ForkServer(Request(target=str(path))).running() as server:
        server.begin()
        yield server


def timed_once(server: ForkServer, folder: Path) -> tuple[TimedProcess, list[int]]:
    """A process that has been timed, and what its model told."""
    process = TimedProcess("eager", server.start(EAGER))
    process.wait_until_ready(120.0)
    assert len(process.turn(3, 60.0)) == 3
    return process, [int(word) for word in (folder / str(pid_of(process))).read_text(encoding="ascii").split()]


def pid_of(process: TimedProcess) -> int:
    return process._started.process.pid


def is_there(pid: int, most_seconds: float = 10.0) -> bool:
    """Whether a process still is there after a while; one that has ended may wait for a parent of another test."""
    deadline = time.monotonic() + most_seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        if state == b"Z":
            return False
        time.sleep(0.05)
    return True


def test_what_the_models_file_made_is_removed_once_by_the_process_that_loaded_it(tmp_path: Path) -> None:
    made = f"import tempfile\nkept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix='made-')"
    with server_of(tmp_path, made) as server:
        for _ in range(2):
            copy, _ = timed_once(server, tmp_path)
            copy.end()
            assert len(list(tmp_path.glob("made-*"))) == 1
    assert list(tmp_path.glob("made-*")) == []


def test_copies_share_what_was_loaded_and_run_by_themselves(tmp_path: Path) -> None:
    with server_of(tmp_path) as server:
        first, told = timed_once(server, tmp_path)
        second, told_too = timed_once(server, tmp_path)
        loaded_by, parent, threads = told

        assert told == told_too
        assert loaded_by == parent
        assert threads == len(os.sched_getaffinity(0))
        assert len({pid_of(first), pid_of(second), loaded_by}) == 3

        os.kill(pid_of(first), signal.SIGSEGV)
        with pytest.raises(SubjectError, match=r"^eager: the process died of signal 11 \(SIGSEGV"):
            first.turn(1, 60.0)
        assert first.status == "crashed"
        assert len(second.turn(1, 60.0)) == 1
        first.end()
        second.end()

        os.kill(loaded_by, signal.SIGKILL)
        third, told = timed_once(server, tmp_path)
        assert told[0] == pid_of(third)
        third.end()
    assert not [pid for pid in (pid_of(first), pid_of(second), pid_of(third), loaded_by) if is_there(pid)]


@pytest.mark.parametrize(
    ("prepare", "is_copied", "threads"),
    [
        ("torch.set_num_threads(1)", True, 1),
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", False, None),
        ("if not os.path.exists('seen'): open('seen', 'w'); os._exit(3)", False, None),  # only the first time
    ],
)
def test_what_the_file_of_a_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str, is_copied: bool, threads: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    with server_of(tmp_path, prepare) as server:
        process, told = timed_once(server, tmp_path)
        process.end()

    assert (told[0] != pid_of(process)) == is_copied
    assert threads is None or told[2] == threads


@pytest.mark.compile
def test_a_diagnosis_times_copies(tmp_path: Path) -> None:
    tells = "lambda: pathlib.Path(f'copy-{os.getpid()}').write_text(str(os.getppid()))"
    path = written(tmp_path / "model.py", f"os.register_at_fork(after_in_child={tells})", tells="")
    words = ["-q", str(path), "--configurations", "eager,inductor", "--budget", "1"]
    subprocess.run([sys.executable, "-m", "layoutdoctor", *words], cwd=tmp_path, check=False, timeout=300)
    parents = [file.read_text(encoding="ascii") for file in tmp_path.glob("copy-*")]

    assert len(parents) >= 3  # each configuration, and one that shows whether the process can be copied
    assert len(set(parents)) == 1
