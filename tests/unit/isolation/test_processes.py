"""What is known of other processes, and how they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING
from unittest import mock

from loops import for_each

from layoutdoctor.isolation import processes
from layoutdoctor.isolation.processes import (
    die_with,
    has_ended,
    how_it_ended,
    kill_all,
    kill_with_all_it_started,
    peak_resident_bytes,
    remove_scratch,
    scratch_prefix,
    started_by,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@for_each(
    ("returncode", "words"),
    [
        (0, "the process ended with exit status 0, as os._exit() does,"),
        (70, "the process ended with exit status 70, as os._exit() does,"),
        (-11, "the process died of signal 11 (SIGSEGV, segmentation fault)"),
        (-6, "the process died of signal 6 (SIGABRT, aborted)"),
        (-signal.SIGTERM, "the process died of signal 15 (SIGTERM)"),
        (-200, "the process died of signal 200"),
    ],
)
def test_the_end_of_a_process_in_words(returncode: int, words: str) -> None:
    assert how_it_ended(returncode) == words


TREE = """
import os, subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
os.fork()
os.write(1, f"{os.getpid()} {inner.pid}\\n".encode())  # whole lines, whatever buffers standard output
time.sleep(100)
"""


def test_all_that_a_process_started_is_found_and_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        numbers = {int(word) for _ in range(2) for word in leader.stdout.readline().split()}
        assert len(numbers) == 3

        assert set(started_by(leader.pid)) == numbers - {leader.pid}
        assert not has_ended(leader.pid)
        kill_with_all_it_started(leader.pid)
        deadline = time.monotonic() + 20
        while not has_ended(leader.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert has_ended(leader.pid)
        assert has_ended(leader.pid)  # looking did not wait for it
        while started_by(leader.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert started_by(leader.pid) == []

    assert leader.returncode == -signal.SIGKILL
    assert has_ended(leader.pid)  # no child of this process any more
    kill_all([leader.pid])  # gone already: no error


# What a compiler and its linker do when they are asked to end: one removes what the other leaves half written.
COMPILER = """
import signal, subprocess, sys, time
from pathlib import Path
out = Path(sys.argv[1])
def remove(*_):
    out.unlink(missing_ok=True)
    sys.exit()
signal.signal(signal.SIGTERM, remove)
linker = "import pathlib, signal, sys, time; "
linker += "signal.signal(15, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit())); "
linker += "print('.', flush=True); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", linker, str(out)])
time.sleep(100)
"""


def test_a_compiler_is_asked_after_what_it_waits_for(tmp_path: Path) -> None:
    leading = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    out = tmp_path / "kernel.so"
    command = [sys.executable, "-c", leading, COMPILER, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        kill_with_all_it_started(leader.pid)

    assert not out.exists()


def test_a_name_that_looks_like_a_status_does_not_confuse() -> None:
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') Z 1 1 1 (', 0, 0, 0); print('.', flush=True)"
    command = [sys.executable, "-c", code + "; time.sleep(100)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as odd:
        assert odd.stdout is not None
        odd.stdout.readline()
        assert odd.pid in started_by(os.getpid())
        kill_with_all_it_started(odd.pid)


def test_without_a_table_of_processes_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROCESSES", tmp_path)
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text("12 (short")
    (tmp_path / "12" / "status").write_text("Name: x\nVmHWM: many kB\n")
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "status").write_text("Name: x\n")

    monkeypatch.setattr(processes.ctypes, "CDLL", mock.Mock(side_effect=OSError("no such library")))
    die_with(os.getppid())
    processes.adopt_orphans()
    assert started_by(os.getpid()) == []
    assert peak_resident_bytes(os.getpid()) is None
    assert peak_resident_bytes(12) is None
    assert peak_resident_bytes(13) is None
    processes.be_first_to_go()  # no error


def test_only_the_temporary_files_of_that_process_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = [tmp_path / name for name in ("layoutdoctor-1234", "layoutdoctor-12345-x", "other-123-x", "target")]
    for path in kept:
        path.mkdir()
    (tmp_path / "target" / "precious").write_text("")
    folder = tmp_path / f"{scratch_prefix(123)}folder"
    folder.mkdir()
    (folder / "trace.json").write_text("{}")
    (tmp_path / f"{scratch_prefix(123)}file").write_text("")
    (tmp_path / f"{scratch_prefix(123)}link").symlink_to(tmp_path / "target")

    remove_scratch(123)

    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert (tmp_path / "target" / "precious").exists()


def test_a_process_whose_parent_is_gone_already_does_not_begin() -> None:
    code = (
        "import os; from layoutdoctor.isolation.processes import die_with; die_with(os.getppid() + 1); print('began')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert (result.returncode, result.stdout) == (1, b"")


STACKS = """a library prints
Fatal Python error: Segmentation fault

Thread 0x00007f1861a73b80 (most recent call first):
  File "/home/ada/net/model.py", line 99 in chatter

Current thread 0x00007f1861a73b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/ada/net/model.py", line 10 in strike
  File "/home/ada/net/model.py", line 18 in forward
  File "<string>", line 1 in <module>

Extension modules: numpy, torch._C (total: 2)
"""


@for_each(
    ("log", "file", "seen"),
    [
        (STACKS, "model.py", "; it was at model.py:10, in strike"),
        (STACKS, "other.py", "; it printed last: a library prints"),
        (STACKS.partition("\n")[2], "other.py", ""),
        ("first\n\n  last  \n", "model.py", "; it printed last: last"),
        ("", "model.py", ""),
    ],
)
def test_where_a_process_was_is_read_from_its_stack(log: str, file: str, seen: str) -> None:
    assert processes.last_seen(log, file) == seen
