"""Processes of the operating system: who started which, and the end of one with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
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


_LOOK_SECONDS = 0.05


def working_folder(otherwise: Path) -> Path:
    """The working folder, or another one if it was removed: torch does not load there."""
    try:
        return Path.cwd()
    except OSError:
        return otherwise


def started_by(pid: int) -> list[psutil.Process]:
    """All living processes that a process started, directly or not, the oldest first."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def of_session(leader: int) -> list[int]:
    """All living processes of the session that a process of ours opened."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def kill_with_all_it_started(pid: int) -> None:
    """
    Ends a process and all that it started.

    The process is stopped first, so that it starts nothing more. Then compilers are asked to end: they delete their
    unfinished output, which later runs would else find in Inductor's cache. Then the rest is killed.
    """
    _send([pid], signal.SIGSTOP)
    started = started_by(pid)
    compilers = [one for one in started if _is_program(one)]
    _send([one.pid for one in compilers[::-1]], signal.SIGTERM)
    psutil.wait_procs(compilers, timeout=_GRACE_SECONDS)
    kill_all([*(one.pid for one in (*started, *started_by(pid))), pid])


def _is_program(process: psutil.Process) -> bool:
    """Whether it runs another program than Python, such as a compiler."""
    with contextlib.suppress(psutil.Error):
        return "python" not in process.name()
    return False


def kill_all(pids: Iterable[int]) -> None:
    """Ends processes; a process that is gone already, or belongs to somebody else, is no error."""
    _send(pids, signal.SIGKILL)


def stop_all(pids: Iterable[int], *, goes_on: bool = False) -> None:
    """Stops processes with all that they started, or lets them go on."""
    for pid in pids:
        _send([pid, *(one.pid for one in started_by(pid))], signal.SIGCONT if goes_on else signal.SIGSTOP)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def busy_seconds() -> float | None:
    """Seconds that the processors have worked that this process may use; None if the system does not say."""
    with contextlib.suppress(Exception):
        usable = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        return sum(sum(one) - one.idle - getattr(one, "iowait", 0.0) for n, one in enumerate(times) if n in usable)
    return None


BUSY_CORES = 0.5
"""Times vary beside other programs that use more."""


class OtherPrograms:
    """The work of other programs from the moment that this is made."""

    def __init__(self) -> None:
        self._begin, self._before = time.monotonic(), self._seconds()

    @property
    def elapsed(self) -> Seconds:
        """How long it has looked."""
        return time.monotonic() - self._begin

    @property
    def cores(self) -> float | None:
        """Cores that they used, on average; None if the system does not say."""
        after = self._seconds()
        if self._before is None or after is None:
            return None
        return max(0.0, after - self._before) / max(self.elapsed, 1e-3)

    @staticmethod
    def _seconds() -> float | None:
        """Processor time that neither this process nor any that it started has used."""
        busy = busy_seconds()
        if busy is None:
            return None
        for pid in (os.getpid(), *(process.pid for process in started_by(os.getpid()))):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                busy -= times.user + times.system + times.children_user + times.children_system
        return busy


def die_with(parent: int) -> None:
    """Has the system kill this process when the one that started it is gone (Linux; nothing elsewhere)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of all that its descendants leave behind when they end (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def guard(parent: int, directory: str) -> None:
    """
    Goes on in a fork; when the fork or ``parent`` ends, this process ends all that the fork leaves behind.

    Whatever a user's script starts, in a session of its own too, ends with the script and with us (Linux).
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
    if not ended:  # nobody else removes it
        shutil.rmtree(directory, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # this one cannot be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(own, -code)
    os._exit(code)


def be_first_to_go() -> None:
    """Has the system choose this process, not the one that watches over it, when memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


_held: list[bytearray] = []
