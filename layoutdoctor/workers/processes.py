"""Finds, stops and ends processes of the operating system, together with the processes that they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds

_PR_SET_PDEATHSIG = 1


_PR_SET_CHILD_SUBREAPER = 36


_GRACE_SECONDS = 0.5
_COMPILER = re.compile(r"(?:^|-)(?:g\+\+|gcc|c\+\+|clang(?:\+\+)?|nvcc)(?:-[\d.]+)?$")
"""Matches names of programs such as ``g++``, ``clang++-18`` and ``x86_64-linux-gnu-g++-12``."""

_LOOK_SECONDS = 0.05
_MOMENT_SECONDS = 0.2


def working_folder(otherwise: Path) -> Path:
    """Returns the working folder; ``otherwise`` if the working folder was removed or may not be entered."""
    try:
        folder = Path.cwd()
    except OSError:
        return otherwise
    return folder if os.access(folder, os.X_OK) else otherwise


def started_by(pid: int) -> list[psutil.Process]:
    """Lists the descendants of a process, each after its own parent; empty if the process has ended."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def of_session(leader: int) -> list[int]:
    """Lists the ids of the processes in the session of this leader."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def kill_with_all_it_started(pid: int) -> None:
    """
    Ends a process and all processes that it started.

    The process is stopped first, so that it starts no more processes. Then started programs other than Python get
    SIGTERM, so that they delete their unfinished files. Then all processes are killed. The unfinished output of
    compilers is deleted here, because some leave it, and a later run would find it in Inductor's cache.
    """
    _send([pid], signal.SIGSTOP)
    started = started_by(pid)
    programs = [one for one in started if _is_program(one)]
    unfinished = [path for path in map(_compiler_output, programs) if path is not None]
    _send([one.pid for one in programs[::-1]], signal.SIGTERM)
    psutil.wait_procs(programs, timeout=_GRACE_SECONDS)
    kill_all([*(one.pid for one in (*started, *started_by(pid))), pid])
    for path in unfinished:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_program(process: psutil.Process) -> bool:
    """Whether a process runs another program than Python, such as a compiler."""
    with contextlib.suppress(psutil.Error):
        return "python" not in process.name()
    return False


def _compiler_output(process: psutil.Process) -> Path | None:
    """Returns the file behind ``-o`` that a compiler writes; None without ``-o``, and for any other program."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if _COMPILER.search(process.name()) and "-o" in words[:-1]:
            return Path(process.cwd(), words[words.index("-o") + 1])
    return None


def kill_all(pids: Iterable[int]) -> None:
    """Kills processes; ignores processes that have ended already or belong to another user."""
    _send(pids, signal.SIGKILL)


def stop_all(pids: Iterable[int], *, goes_on: bool = False) -> None:
    """Stops processes and all processes that they started; with ``goes_on``, lets them continue."""
    for pid in pids:
        _send([pid, *(one.pid for one in started_by(pid))], signal.SIGCONT if goes_on else signal.SIGSTOP)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def busy_seconds() -> float | None:
    """Returns the busy time since boot, summed over the processors that this process may use; None if not known."""
    with contextlib.suppress(Exception):
        usable = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        idle = ("idle", "iowait", "guest", "guest_nice")  # the times of guests are part of the user times
        return sum(sum(one) - sum(getattr(one, i, 0.0) for i in idle) for n, one in enumerate(times) if n in usable)
    return None


BUSY_CORES = 0.5
"""Number of cores that other programs may use before times vary."""


class OtherPrograms:
    """A meter of the processor time of other programs, from its creation on."""

    def __init__(self) -> None:
        self._begin, self._before = time.monotonic(), self._seconds()

    @property
    def elapsed(self) -> Seconds:
        """Time since the meter was made."""
        return time.monotonic() - self._begin

    @property
    def cores(self) -> float | None:
        """Number of cores that other programs used on average; None if it is not known."""
        after = self._seconds()
        if self._before is None or after is None:
            return None
        return max(0.0, after - self._before) / max(self.elapsed, 1e-3)

    @staticmethod
    def _seconds() -> float | None:
        """Returns the processor time of all programs except this process and its descendants; None if not known."""
        busy = busy_seconds()
        if busy is None:
            return None
        for pid in (os.getpid(), *(process.pid for process in started_by(os.getpid()))):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                busy -= times.user + times.system + times.children_user + times.children_system
        return busy


def cores_in_use() -> float | None:
    """Measures how many cores are busy while this thread sleeps for a moment; None if it is not known."""
    begin, before = time.monotonic(), busy_seconds()
    time.sleep(_MOMENT_SECONDS)
    after = busy_seconds()
    return None if before is None or after is None else (after - before) / (time.monotonic() - begin)


def die_with(parent: int) -> None:
    """Makes the system kill this process when its parent ends (Linux). If the parent has ended, exits at once."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of each of its descendants whose own parent has ended (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def guard(parent: int, directory: str) -> None:
    """
    Forks, and returns in the fork only. The forking process stays as a guard that leaves no process behind.

    The guard waits until the fork or ``parent`` ends, and kills all its descendants, even those in a session of their
    own (Linux). Then it exits with the fork's exit code or signal, or with 0 if ``parent`` has ended first.

    Args:
        parent: Process id of the process that started this one.
        directory: Folder that is removed if the parent has ended first.
    """
    adopt_orphans()
    own, child = os.getpid(), os.fork()
    if child == 0:
        die_with(own)
        return
    ended, status = 0, 0
    while not ended and os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
        ended, status = os.waitpid(child, os.WNOHANG)
    for one in started_by(own):
        kill_with_all_it_started(one.pid)
    if not ended:  # the parent, which would remove the folder, has ended
        shutil.rmtree(directory, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # no handler can be set for SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(own, -code)
    os._exit(code)


def be_first_to_go() -> None:
    """Makes the system kill this process before its parent if memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
