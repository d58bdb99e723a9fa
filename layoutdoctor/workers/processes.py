"""Processes of the operating system: how one ended in words, and the end of one with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNAL_WORDS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "floating-point exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed, as the system does when memory runs out",
    signal.SIGXCPU: "its limit of processor time was reached",
}
_STACK = re.compile(r"^(Fatal Python error: |Current thread 0x|Thread 0x)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)')
_GRACE_SECONDS = 0.5
_LOOK_SECONDS = 0.05
# Below the size from which glibc's allocator first maps memory of its own, so that all of them lie on the heap.
_BLOCK_BYTES = 100_000
_MOST_BLOCKS = 40
# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, and what lifts these limits of glibc's allocator.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


def working_folder(otherwise: Path) -> Path:
    """The working folder, or another one if it was removed: torch does not load there."""
    try:
        return Path.cwd()
    except OSError:
        return otherwise


def how_it_ended(returncode: int) -> str:
    """
    The end of a process in words, such as ``the process died of signal 11 (SIGSEGV, segmentation fault)``.

    Args:
        returncode: As ``subprocess`` gives it: below 0 for a signal.
    """
    if returncode >= 0:
        return f"the process ended with exit status {returncode}, as os._exit() does"
    names = {number.value: number for number in signal.Signals}
    if -returncode not in names:
        return f"the process died of signal {-returncode}"
    number = names[-returncode]
    words = _SIGNAL_WORDS.get(number)
    return f"the process died of signal {number.value} ({number.name}{', ' + words if words else ''})"


def last_seen(log: str, file: str) -> str:
    """
    The last place of a process, for the end of a sentence: a line of the user's file, or its last words.

    Args:
        log: Its output, with faulthandler's stacks at the end.
        file: Without its folder.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    stack = next((number for number, line in enumerate(lines) if _STACK.match(line)), len(lines))
    now = next((number for number in range(stack, len(lines)) if lines[number].startswith("Current thread")), stack)
    frames = (match for line in lines[now:] if (match := _FRAME.match(line)) is not None)
    users = next((match for match in frames if match[1].rpartition("/")[2] == file), None)
    if users is not None:
        return f"; it was at {file}:{users[2]}, in {users[3]}"
    return f"; it printed last: {lines[stack - 1].strip()}" if stack else ""


def what_matters(log: str, count: int) -> list[str]:
    """So many lines of what a process printed: the first of the stacks that end it, else the last of all."""
    lines = log.splitlines()
    stack = next((number for number, line in enumerate(lines) if _STACK.match(line)), max(len(lines) - count, 0))
    return lines[stack : stack + count]


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

    It is stopped, so that it starts nothing more. Compilers that it started are asked to end: they remove the output of
    their linkers, which every later run would find half written in Inductor's cache.
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


def short_waits(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Environment variables for a process that is to be timed; none if the user has chosen how threads wait.

    A thread of GNU's OpenMP that waits for the others keeps its processor busy for up to 14 ms. If another program
    needs that processor, the thread that it waits for loses this time: a call of 2 ms takes 7 to 95 ms, by chance.
    Waits of half a millisecond still bridge the gaps between the operations of a call.

    Source:
        ``GOMP_SPINCOUNT`` (libgomp), which is read when the library is loaded; measured in docs/measuring.md.
    """
    if any(name in environment for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return {}
    return {"GOMP_SPINCOUNT": "10000"}


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


def keep_memory() -> None:
    """From now on memory that is freed stays with this process, as far as its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


_held: list[bytearray] = []


def take_some_memory() -> None:
    """
    Another amount of memory in every process, held while it runs.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary what should
        not matter.
    """
    _held.extend(bytearray(_BLOCK_BYTES) for _ in range(random.SystemRandom().randrange(_MOST_BLOCKS)))


def end_worker_threads() -> None:
    """
    Ends OpenMP's threads, so that a fork is safe; the next parallel region starts new ones.

    Source:
        ``omp_pause_resource_all`` (OpenMP 5.0) with ``omp_pause_hard``, in every OpenMP library of this process.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    text = maps.read_text(encoding="utf-8", errors="replace")
    words = ("libgomp", "libomp", "libiomp")
    files = {line.split()[-1] for line in text.splitlines() if any(word in line for word in words)}
    for file in sorted(files):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(file).omp_pause_resource_all(2)
