"""
Processes of the operating system: what started what, how one ended in words, the end of one with all it started, and
the memory that they have and that is left to them.

On systems without ``/proc`` less is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_PROCESSES = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
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
_SCRATCH_PREFIX = "layoutdoctor-"
_CHILD_CODE = "import sys; sys.path[:] = sys.argv[5:]; from layoutdoctor.run.worker import main; main(sys.argv[1:5])"


def start_child(board: int, output: int) -> tuple[subprocess.Popen[bytes], int, int]:
    """
    Starts a process that reads a request and writes messages, with the interpreter that runs this and its options.

    Args:
        board: Descriptor of the memory for a board; closed here.
        output: What its standard output and error become, as ``subprocess`` has it.

    Returns:
        The process, the end of the pipe that its request is written to, and the end of the pipe that its messages
        come from.

    Raises:
        TransportError: It cannot be started.
    """
    if not sys.executable:
        os.close(board)
        raise TransportError(
            "cannot start a process for the diagnosis: this interpreter does not know its own program "
            "(sys.executable is empty); use --no-isolation"
        )
    messages, messages_end = os.pipe()
    requests, requests_end = os.pipe()
    numbers = (requests, messages_end, os.getpid(), board)
    try:
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen(
            [sys.executable, *options, "-c", _CHILD_CODE, *map(str, numbers), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(requests, messages_end, board),
            start_new_session=True,
        )
    except OSError as error:
        os.close(messages)
        os.close(requests_end)
        raise TransportError(
            f"cannot start a process for the diagnosis: {error.strerror or error}; "
            "free memory or processes, or use --no-isolation"
        ) from error
    finally:
        for descriptor in (messages_end, requests, board):
            os.close(descriptor)
    return process, requests_end, messages


def scratch_prefix(pid: int) -> str:
    """How the names of a process's own temporary files begin."""
    return f"{_SCRATCH_PREFIX}{pid}-"


def private_directory() -> tempfile.TemporaryDirectory[str]:
    """
    A directory for a model on its way to another process, gone at the end of the block.

    Raises:
        TransportError: There is no room for one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=scratch_prefix(os.getpid()), ignore_cleanup_errors=True)
    except OSError as error:
        raise TransportError(
            f"cannot save the model for another process in {tempfile.gettempdir()!r}: {error.strerror or error}"
        ) from error


def remove_scratch(pid: int) -> None:
    """Removes the temporary files that a process which is gone has left."""
    for path in Path(tempfile.gettempdir()).glob(f"{scratch_prefix(pid)}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def how_it_ended(returncode: int) -> str:
    """
    The end of a process in words, such as ``the process died of signal 11 (SIGSEGV, segmentation fault)``.

    Args:
        returncode: As ``subprocess`` gives it: below 0 for a signal.
    """
    if returncode >= 0:
        return f"the process ended with exit status {returncode}, as os._exit() does,"
    try:
        number = signal.Signals(-returncode)
    except ValueError:
        return f"the process died of signal {-returncode}"
    words = _SIGNAL_WORDS.get(number)
    return f"the process died of signal {number.value} ({number.name}{', ' + words if words else ''})"


def last_seen(log: str, file: str) -> str:
    """
    Where a process was, for the end of a sentence: the line of the user's file that ran last; else its last words.

    Args:
        log: What it printed, at the end faulthandler's stacks.
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


def started_by(pid: int) -> list[int]:
    """
    All processes that a process started, directly or not: its descendants, and those of the session that it leads.

    One in a session of its own whose parent is gone is not found; what has ended does not count.
    """
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state parent group session ...": the name may hold anything, brackets too
            fields = entry.read_bytes().rpartition(b")")[2].split()
            number = int(entry.parent.name)
            if fields[0] == b"Z":  # it has ended, and its parent has not looked yet
                continue
            children.setdefault(int(fields[1]), []).append(number)
            if int(fields[3]) == pid:
                found.add(number)
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found.update(started)
        waiting += started
    return sorted(found - {pid})


def kill_with_all_it_started(pid: int) -> None:
    """
    Ends a process that nobody has waited for yet and that leads a session, and all that it started.

    It is stopped, so that it starts nothing more, and what it started is asked first, the newest before what waits for
    it: a compiler removes what its linker left half written, which every later run would find in Inductor's cache.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)
    _ask_to_end(started_by(pid)[::-1])
    kill_all([*started_by(pid), pid])


def kill_all(pids: Iterable[int]) -> None:
    """Ends processes; what is gone already, or belongs to somebody else, is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _ask_to_end(pids: Sequence[int], most_seconds: float = 0.5) -> None:
    """One after the other, each when the one before has ended, unless that takes its time."""
    deadline = time.monotonic() + most_seconds
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        _wait_while(partial(_runs, pid), min(0.1, deadline - time.monotonic()))
    _wait_while(lambda: any(map(_runs, pids)), deadline - time.monotonic())


def _wait_while(is_so: Callable[[], bool], most_seconds: float) -> None:
    deadline = time.monotonic() + most_seconds
    while is_so() and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return (_PROCESSES / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return False


def has_ended(pid: int) -> bool:
    """Whether a child process has ended; it is not waited for, so that its number stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def wait_until_ended(pid: int, most_seconds: float) -> None:
    """Waits for a child process to end, which leaves its number its own."""
    _wait_while(lambda: not has_ended(pid), most_seconds)


def memory_of(pid: int | str = "self") -> dict[str, int]:
    """What the system says of the memory of a living process, such as ``VmRSS``, in bytes; empty where nothing."""
    return _table_of(_PROCESSES / str(pid) / "status")


def peak_resident_bytes(pid: int) -> int | None:
    """Most memory that a living process has had in RAM; None where the system does not say."""
    return memory_of(pid).get("VmHWM")


def available_bytes() -> int | None:
    """Memory that new processes can take: what the system and the control groups leave; None where nobody says it."""
    return min(_free_for_all(), default=None)


def available_here() -> int | None:
    """Memory that this process can still take, which may have limits of its own; None where nobody says it."""
    return min((*_free_for_all(), *_free_in_limits()), default=None)


def _free_for_all() -> Iterator[int]:
    available = _table_of(_PROCESSES / "meminfo").get("MemAvailable")
    if available is not None:
        yield available
    yield from _free_in_control_groups()


def _table_of(path: Path) -> dict[str, int]:
    """The lines ``Name:  123 kB`` of a file, in bytes; empty where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: 1024 * int(amount) for name, amount in found}


def _free_in_control_groups() -> Iterator[int]:
    """What each control group above the process leaves; file pages it would drop count as free."""
    try:
        lines = (_PROCESSES / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            yield from _free_in_groups(_CGROUPS, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _free_in_groups(_CGROUPS / "memory", path, *names)


def _free_in_groups(root: Path, path: str, limit_name: str, usage_name: str, cache_name: str) -> Iterator[int]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):  # in a container its own group is the root of what is mounted
        group = root.joinpath(*parts[:count])
        limit, usage = _number_in(group / limit_name), _number_in(group / usage_name)
        if limit is not None and usage is not None:
            yield max(limit - usage + _statistic(group / "memory.stat", cache_name), 0)


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max": no limit
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return 0
    return int(found.group(1)) if found else 0


def _free_in_limits() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    used = memory_of()
    for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and name in used:
            yield max(soft - used[name], 0)


def die_with(parent: int) -> None:
    """Has the system kill this process when the one that started it is gone (Linux; nothing elsewhere)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # gone before the system was told
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of all that its descendants leave behind when they end (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def be_first_to_go() -> None:
    """Has the system choose this process, not the one that watches over it, when memory runs out (Linux)."""
    with contextlib.suppress(OSError):
        (_PROCESSES / "self" / "oom_score_adj").write_text("500", encoding="ascii")
